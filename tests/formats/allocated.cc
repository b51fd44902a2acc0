#include "formats/allocated.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> allocated{0};

void* count_and_allocate(size_t size) {
  allocated += size;
  return std::malloc(size);
}

}  // namespace

// All forms are replaced, so that sanitizers see each freed by the function that belongs to it.
void* operator new(size_t size) {
  if (void* memory = count_and_allocate(size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](size_t size) { return operator new(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return count_and_allocate(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return count_and_allocate(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace reprise::test {

size_t allocated_bytes() { return allocated; }

}  // namespace reprise::test
