#include "scratch.h"

#include <cstdlib>

#ifndef MAGNITUDE_MEMORY_POOL_SIZE
#define MAGNITUDE_MEMORY_POOL_SIZE 4194304
#endif

namespace magnitude {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kKeptBytes = MAGNITUDE_MEMORY_POOL_SIZE;

struct Kept {
  void* data = nullptr;
  size_t bytes = 0;
  ~Kept() { std::free(data); }
};

thread_local Kept kept;

}  // namespace

Scratch::Scratch(size_t bytes) : data_(nullptr) {
  if (bytes > kept.bytes) {
    std::free(kept.data);
    kept.bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    kept.data = std::aligned_alloc(kAlignment, kept.bytes);
    if (kept.data == nullptr) kept.bytes = 0;
  }
  data_ = static_cast<unsigned char*>(kept.data);
}

Scratch::~Scratch() {
  if (kept.bytes <= kKeptBytes) return;
  std::free(kept.data);
  kept.data = nullptr;
  kept.bytes = 0;
}

}  // namespace magnitude
