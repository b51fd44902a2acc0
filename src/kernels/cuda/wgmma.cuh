// Hopper's warpgroup products: 64 rows of four warps, right operands in shared memory, laid out by
// kv_tile.cuh. They run on their own from wgmma_commit() on; until a wait, the registers that they
// name must not be touched.
#pragma once

#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/mma.cuh"

namespace reprise::kernels::cuda {

__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Makes shared memory that threads wrote visible to warpgroup products.
__device__ inline void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Barriers of some of a block's warps: threads is the number of those that arrive and that wait.
__device__ inline void wait_named(uint32_t name, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ inline void arrive_named(uint32_t name, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

template <int kRegisters>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Registers that were written are ready for the products that follow.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of registers of a product across this point.
template <int N>
__device__ void hold(float (&x)[N][4]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    asm volatile("" : "+f"(x[j][0]), "+f"(x[j][1]), "+f"(x[j][2]), "+f"(x[j][3])::"memory");
  }
}
template <int N>
__device__ void hold(uint32_t (&x)[N][4]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    asm volatile("" : "+r"(x[j][0]), "+r"(x[j][1]), "+r"(x[j][2]), "+r"(x[j][3])::"memory");
  }
}

// An operand in atoms of 8 x 128 bytes (128-byte swizzle). PTX ISA, "Matrix Descriptor Format":
// address, leading and stride offsets in units of 16 bytes.
__device__ constexpr uint64_t wgmma_operand(uint32_t address, uint32_t leading, uint32_t stride) {
  return uint64_t{address >> 4} | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32 |
         uint64_t{1} << 62;
}

// Rows of a tile as rows (of the left operand) or columns (of the right); head_dim is summed over.
// step: 16 dimensions.
template <int D>
__device__ constexpr uint64_t rows_operand(uint32_t tile) {
  return wgmma_operand(tile, 16, D / 64 * 1024);
}
__device__ constexpr uint64_t rows_operand_step(uint32_t step) {
  return (step / 4 * 1024 + step % 4 * 32) >> 4;
}

// Rows of a tile are summed over; head_dim gives the columns. step: 16 rows.
template <int D>
__device__ constexpr uint64_t columns_operand(uint32_t tile) {
  return wgmma_operand(tile, 1024, D / 64 * 1024);
}
template <int D>
__device__ constexpr uint64_t columns_operand_step(uint32_t step) {
  return (step * 16 * D * 2) >> 4;
}

#define REPRISE_LIST_32                                                                \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22," \
  "%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REPRISE_LIST_64                                                                   \
  REPRISE_LIST_32                                                                         \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52," \
  "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REPRISE_LIST_128                                                                  \
  REPRISE_LIST_64                                                                         \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84," \
  "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104," \
  "%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121," \
  "%122,%123,%124,%125,%126,%127"
#define REPRISE_D4(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define REPRISE_D16(j) REPRISE_D4(j), REPRISE_D4(j + 1), REPRISE_D4(j + 2), REPRISE_D4(j + 3)
#define REPRISE_D32(j) REPRISE_D16(j), REPRISE_D16(j + 4)
#define REPRISE_D64(j) REPRISE_D32(j), REPRISE_D32(j + 8)
#define REPRISE_D128(j) REPRISE_D64(j), REPRISE_D64(j + 16)

// n columns are r registers of d; both operands in shared memory (_SS) or the left one in registers
// (_RS) and the right one transposed. The operands that follow d are numbered r0, r1, ...
#define REPRISE_WGMMA_SS(n, r, type, r0, r1, r2)                                     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2                              \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " {" REPRISE_LIST_##r "}, %" #r0 ", %" #r1 ", p, 1, 1, 0, 0;\n}"      \
               : REPRISE_D##r(0)                                                     \
               : "l"(a), "l"(b), "r"(add))
#define REPRISE_WGMMA_RS(n, r, type, r0, r1, r2, r3, r4)                               \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type         \
               " {" REPRISE_LIST_##r "}, {%" #r0 ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #r4 \
                                     ", 1, 1, 1, 1;"                                   \
               : REPRISE_D##r(0)                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d (+)= a b: [64, 16] x [16, 8 N], both from shared memory; add = 0 overwrites d.
template <typename T, int N>
__device__ void wgmma(float (&d)[N][4], uint64_t a, uint64_t b, uint32_t add) {
  static_assert(N == 8 || N == 16);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (N == 8) REPRISE_WGMMA_SS(64, 32, "bf16", 32, 33, 34);
    if constexpr (N == 16) REPRISE_WGMMA_SS(128, 64, "bf16", 64, 65, 66);
  } else {
    if constexpr (N == 8) REPRISE_WGMMA_SS(64, 32, "f16", 32, 33, 34);
    if constexpr (N == 16) REPRISE_WGMMA_SS(128, 64, "f16", 64, 65, 66);
  }
}

// d += a b: [64, 16] x [16, 8 N]; a from registers, b by its columns.
template <typename T, int N>
__device__ void wgmma(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(N == 8 || N == 16 || N == 32);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (N == 8) REPRISE_WGMMA_RS(64, 32, "bf16", 32, 33, 34, 35, 36);
    if constexpr (N == 16) REPRISE_WGMMA_RS(128, 64, "bf16", 64, 65, 66, 67, 68);
    if constexpr (N == 32) REPRISE_WGMMA_RS(256, 128, "bf16", 128, 129, 130, 131, 132);
  } else {
    if constexpr (N == 8) REPRISE_WGMMA_RS(64, 32, "f16", 32, 33, 34, 35, 36);
    if constexpr (N == 16) REPRISE_WGMMA_RS(128, 64, "f16", 64, 65, 66, 67, 68);
    if constexpr (N == 32) REPRISE_WGMMA_RS(256, 128, "f16", 128, 129, 130, 131, 132);
  }
}

#undef REPRISE_WGMMA_SS
#undef REPRISE_WGMMA_RS
#undef REPRISE_LIST_32
#undef REPRISE_LIST_64
#undef REPRISE_LIST_128
#undef REPRISE_D4
#undef REPRISE_D16
#undef REPRISE_D32
#undef REPRISE_D64
#undef REPRISE_D128

}  // namespace reprise::kernels::cuda
