// The choice of the largest scores of one instruction set each; chosen in largest.cc.
#pragma once

#include "kernels/largest.h"

namespace reprise::kernels {

void largest_ref(const float* scores, size_t n, size_t k, int32_t* indices);
void mark_largest_ref(const float* scores, size_t n, size_t k, uint16_t* marks);
void take_marked_ref(const uint16_t* marks, size_t n, const int32_t* blocks, const float* scores,
                     int32_t* marked_blocks, float* marked_scores);
void put_marked_ref(const uint16_t* marks, size_t n, const float* marked, float* scores);

// orders: [n rounded up to kMarks] scratch.
void largest_avx2(const float* scores, size_t n, size_t k, int32_t* orders, int32_t* indices);
void mark_largest_avx2(const float* scores, size_t n, size_t k, int32_t* orders, int32_t& near,
                       uint16_t* marks);
void largest_avx512(const float* scores, size_t n, size_t k, int32_t* orders, int32_t* indices);
void mark_largest_avx512(const float* scores, size_t n, size_t k, int32_t* orders, int32_t& near,
                         uint16_t* marks);
void take_marked_avx512(const uint16_t* marks, size_t n, const int32_t* blocks, const float* scores,
                        int32_t* marked_blocks, float* marked_scores);
void put_marked_avx512(const uint16_t* marks, size_t n, const float* marked, float* scores);

}  // namespace reprise::kernels
