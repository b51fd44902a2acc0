// What blocks of MAC-Attention tell each other. A message carries the number of its launch: who
// waits for one polls its own words, without a fence and a counter between.
#pragma once

#include <cstdint>

namespace reprise::kernels::cuda {

namespace mac {

// Two words, each beside the number of the launch, since only halves arrive in one piece.
struct alignas(16) Message {
  uint64_t halves[2];
};

__device__ inline void send(Message* to, uint32_t launch, uint2 words) {
  const uint64_t number = uint64_t{launch} << 32;
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(number | words.x),
               "l"(number | words.y)
               : "memory");
}

__device__ inline Message look(const Message* at) {
  Message m;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(m.halves[0]), "=l"(m.halves[1])
               : "l"(at)
               : "memory");
  return m;
}

__device__ inline bool is_of(const Message& m, uint32_t launch) {
  return static_cast<uint32_t>(m.halves[0] >> 32) == launch &&
         static_cast<uint32_t>(m.halves[1] >> 32) == launch;
}

__device__ inline uint2 words_of(const Message& m) {
  return {static_cast<uint32_t>(m.halves[0]), static_cast<uint32_t>(m.halves[1])};
}

// Waits for so many messages at once; at(k): where the k-th one is, null: it is all ones.
template <uint32_t count, typename At>
__device__ void receive(uint32_t launch, uint2 (&words)[count], const At& at) {
  bool all;
  do {
    Message messages[count];
#pragma unroll
    for (uint32_t k = 0; k < count; ++k) {
      const uint64_t ones = uint64_t{launch} << 32 | ~0u;
      const Message* from = at(k);
      messages[k] = from != nullptr ? look(from) : Message{{ones, ones}};
    }
    all = true;
#pragma unroll
    for (uint32_t k = 0; k < count; ++k) {
      all = all && is_of(messages[k], launch);
      words[k] = words_of(messages[k]);
    }
  } while (!all);
}

// Where the blocks of a launch arrive, once. The upper half of the word counts the launches in
// which all have.
struct GridBarrier {
  unsigned long long* word;
  uint32_t before = 0;

  // Before the block arrives.
  __device__ void look() { before = count<false>(); }
  // Never that of words which are zero.
  __device__ uint32_t launch() const { return before + 1; }

  // All threads, which have looked. What the block has read of others has come back: no fence.
  __device__ void arrive() const {
    __syncthreads_or(before == 0 ? 1 : 0);  // waits until every look is over
    if (threadIdx.x != 0) return;
    const unsigned long long add = blockIdx.x == 0 ? (1ull << 32) + 1 - gridDim.x : 1;
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(word), "l"(add) : "memory");
  }
  __device__ void wait() const {
    while (count<true>() == before) {
    }
  }

 private:
  template <bool acquires>
  __device__ uint32_t count() const {
    unsigned long long now;
    if constexpr (acquires) {
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(word) : "memory");
    } else {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(word) : "memory");
    }
    return static_cast<uint32_t>(now >> 32);
  }
};

}  // namespace mac

}  // namespace reprise::kernels::cuda
