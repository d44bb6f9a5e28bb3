#include "scratch.h"

#include <cstdlib>

#ifndef MAGNITUDE_MEMORY_POOL_SIZE
#define MAGNITUDE_MEMORY_POOL_SIZE 4194304
#endif

namespace magnitude {
namespace {

constexpr size_t kKeptBytes = MAGNITUDE_MEMORY_POOL_SIZE;

struct Kept {
  void* data = nullptr;
  size_t bytes = 0;
  ~Kept() { std::free(data); }
};

thread_local Kept kept_by_kind[2];

}  // namespace

Scratch::Scratch(size_t bytes, ScratchOf which) : which_(which), data_(nullptr) {
  Kept& kept = kept_by_kind[static_cast<int>(which)];
  if (bytes > kept.bytes) {
    std::free(kept.data);
    kept.bytes = static_cast<size_t>(aligned(static_cast<int64_t>(bytes)));
    kept.data = std::aligned_alloc(kScratchAlignment, kept.bytes);
    if (kept.data == nullptr) kept.bytes = 0;
  }
  data_ = static_cast<unsigned char*>(kept.data);
}

Scratch::~Scratch() {
  Kept& kept = kept_by_kind[static_cast<int>(which_)];
  if (kept.bytes <= kKeptBytes) return;
  std::free(kept.data);
  kept.data = nullptr;
  kept.bytes = 0;
}

}  // namespace magnitude
