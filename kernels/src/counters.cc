#include "counters.h"

#include <time.h>

#include <atomic>
#include <initializer_list>

#include "error.h"

namespace magnitude {
namespace {

const char* const kNames[kOperators] = {"product", "append", "attention", "attention_over_bytes"};

// Atomic, as two callers may end at once; without an order among each other, so a reader may see a call's time before
// its bytes.
struct alignas(64) Sums {
  std::atomic<uint64_t> calls{0}, nanoseconds{0}, weight_bytes{0}, kv_bytes{0}, rows{0};
};

Sums sums[kOperators];

#if defined(MAGNITUDE_PROFILING)
int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void add(std::atomic<uint64_t>* sum, int64_t amount) {
  sum->fetch_add(static_cast<uint64_t>(amount), std::memory_order_relaxed);
}
#endif

}  // namespace

#if defined(MAGNITUDE_PROFILING)

Counted::Counted(Operator which, int64_t weight_bytes, int64_t kv_bytes, int64_t rows)
    : which_(which), weight_bytes_(weight_bytes), kv_bytes_(kv_bytes), rows_(rows), start_ns_(now_ns()) {}

Counted::~Counted() {
  Sums& sum = sums[static_cast<int>(which_)];
  add(&sum.nanoseconds, now_ns() - start_ns_);
  add(&sum.calls, 1);
  if (weight_bytes_ != 0) add(&sum.weight_bytes, weight_bytes_);
  if (kv_bytes_ != 0) add(&sum.kv_bytes, kv_bytes_);
  add(&sum.rows, rows_);
}

#else

Counted::Counted(Operator, int64_t, int64_t, int64_t) {}
Counted::~Counted() {}

#endif

const char* operator_name(int which) { return which >= 0 && which < kOperators ? kNames[which] : nullptr; }

int read_counters(int which, mk_counters* out) {
  if (operator_name(which) == nullptr) return fail("there is no operator %d", which);
  if (out == nullptr) return fail("the place for counters is null");
  const Sums& sum = sums[which];
  out->calls = sum.calls.load(std::memory_order_relaxed);
  out->nanoseconds = sum.nanoseconds.load(std::memory_order_relaxed);
  out->weight_bytes = sum.weight_bytes.load(std::memory_order_relaxed);
  out->kv_bytes = sum.kv_bytes.load(std::memory_order_relaxed);
  out->rows = sum.rows.load(std::memory_order_relaxed);
  return 0;
}

void reset_counters() {
  for (Sums& sum : sums) {
    for (std::atomic<uint64_t>* each : {&sum.calls, &sum.nanoseconds, &sum.weight_bytes, &sum.kv_bytes, &sum.rows}) {
      each->store(0, std::memory_order_relaxed);
    }
  }
}

}  // namespace magnitude
