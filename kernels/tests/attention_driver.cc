// Runs cases of attention and of appends from stdin and writes what came out to stdout, for tests that compare paths
// and processors (also under an emulator). tests/kernels/attention_cases.py writes the cases.
//
//   attention_driver                 lists the paths that this build and processor have
//   attention_driver PATH <cases     runs them
//
// A case is a Header, then the arrays whose sizes it gives: keys, values, their scales, slots and positions of rows,
// and the first (an append: also the second) of what the operation has besides. An answer is an int64 status, the
// error's text (int64 length, bytes), and the buffers that the case may change. Every buffer is an allocation of exactly
// its length, so that a sanitizer sees each access beyond.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "attention.h"
#include "cache_bytes.h"
#include "error.h"

namespace magnitude {
namespace {

enum : int64_t { kAttend = 1, kAppend = 2 };

struct Header {
  int64_t operation;
  int64_t kind;  // 0 float, 1 bytes
  int64_t keys_bytes, values_bytes, key_scales_bytes, value_scales_bytes;
  int64_t slots, kv_heads, positions, head_size;
  int64_t slot_stride, head_stride, position_stride, scale_slot_stride, scale_head_stride;
  int64_t rows;
  int64_t heads, window;
  int64_t first_bytes, first_stride;    // queries, or new keys
  int64_t second_bytes, second_stride;  // results, or new values
  int64_t threads;                      // as AttentionCall says
  int64_t runners;                      // threads that really run
  int64_t seed;                         // of the order of tasks; 0 for ascending
  double scale;
};

// Memory of exactly this many bytes, aligned like malloc.
class Buffer {
 public:
  explicit Buffer(int64_t bytes) : bytes_(static_cast<size_t>(bytes)), memory_(malloc(bytes_ == 0 ? 1 : bytes_)) {
    if (memory_ == nullptr) abort();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { free(memory_); }

  void read() {
    if (fread(memory_, 1, bytes_, stdin) != bytes_) {
      fputs("a case ends early\n", stderr);
      exit(2);
    }
  }
  void write() const { fwrite(memory_, 1, bytes_, stdout); }
  void fill(int value) { memset(memory_, value, bytes_); }
  template <class T>
  T* as() {
    return static_cast<T*>(memory_);
  }

 private:
  size_t bytes_;
  void* memory_;
};

struct Case {
  explicit Case(const Header& h)
      : header(h),
        keys(h.keys_bytes),
        values(h.values_bytes),
        key_scales(h.key_scales_bytes),
        value_scales(h.value_scales_bytes),
        slots(std::max<int64_t>(h.rows, 0) * 8),
        positions(std::max<int64_t>(h.rows, 0) * 8),
        first(h.first_bytes),
        second(h.second_bytes) {}

  KvCache cache() {
    KvCache c;
    c.kind = header.kind == 0 ? CacheKind::kFloat : CacheKind::kBytes;
    c.keys = keys.as<void>();
    c.values = values.as<void>();
    c.key_scales = key_scales.as<float>();
    c.value_scales = value_scales.as<float>();
    c.keys_bytes = header.keys_bytes;
    c.values_bytes = header.values_bytes;
    c.key_scales_bytes = header.key_scales_bytes;
    c.value_scales_bytes = header.value_scales_bytes;
    c.slots = header.slots;
    c.kv_heads = header.kv_heads;
    c.positions = header.positions;
    c.head_size = header.head_size;
    c.slot_stride = header.slot_stride;
    c.head_stride = header.head_stride;
    c.position_stride = header.position_stride;
    c.scale_slot_stride = header.scale_slot_stride;
    c.scale_head_stride = header.scale_head_stride;
    return c;
  }
  CacheRows rows() { return {header.rows, slots.as<int64_t>(), positions.as<int64_t>()}; }

  Header header;
  Buffer keys, values, key_scales, value_scales, slots, positions, first, second;
};

void put(int64_t value) { fwrite(&value, sizeof value, 1, stdout); }

void put_status(int status) {
  const std::string text = status == 0 ? "" : last_error();
  put(status);
  put(static_cast<int64_t>(text.size()));
  fwrite(text.data(), 1, text.size(), stdout);
}

std::vector<int64_t> order_of(int64_t tasks, int64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(tasks));
  for (int64_t i = 0; i < tasks; ++i) order[static_cast<size_t>(i)] = i;
  uint64_t state = static_cast<uint64_t>(seed);
  for (size_t i = order.size(); seed != 0 && i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1], order[static_cast<size_t>(state >> 33) % i]);
  }
  return order;
}

template <class Body>
void run(const std::vector<int64_t>& order, int64_t runners, Body body) {
  std::atomic<size_t> next(0);
  const auto work = [&] {
    for (size_t i = next++; i < order.size(); i = next++) body(order[i]);
  };
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < runners; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

void run_attend(const AttentionPath& path, Case* c) {
  const Header& h = c->header;
  AttentionCall call;
  call.cache = c->cache();
  call.rows = c->rows();
  call.heads = h.heads;
  call.window = h.window;
  call.scale = static_cast<float>(h.scale);
  call.queries = c->first.as<float>();
  call.queries_bytes = h.first_bytes;
  call.queries_stride = h.first_stride;
  call.out = c->second.as<float>();
  call.out_bytes = h.second_bytes;
  call.out_stride = h.second_stride;
  call.threads = h.threads;
  c->first.read();
  c->second.fill(0xa5);
  const int status = check_attention(call);
  if (status == 0) {
    const int64_t bytes = attention_workspace_bytes(call);
    const std::unique_ptr<void, void (*)(void*)> workspace(aligned_alloc(64, static_cast<size_t>(bytes)), free);
    memset(workspace.get(), 0xa5, static_cast<size_t>(bytes));
    const int64_t tasks = plan_attention(call, workspace.get());
    run(order_of(tasks, h.seed), h.runners, [&](int64_t task) { attend(path, call, workspace.get(), task); });
  }
  put_status(status);
  c->second.write();
}

void run_append(Case* c) {
  const Header& h = c->header;
  AppendCall call;
  call.cache = c->cache();
  call.rows = c->rows();
  call.keys = c->first.as<float>();
  call.keys_bytes = h.first_bytes;
  call.keys_stride = h.first_stride;
  call.values = c->second.as<float>();
  call.values_bytes = h.second_bytes;
  call.values_stride = h.second_stride;
  c->first.read();
  c->second.read();
  const int status = check_append(call);
  if (status == 0) {
    run(order_of(append_tasks(call), h.seed), h.runners, [&](int64_t task) { append(call, task); });
  }
  put_status(status);
  c->keys.write();
  c->values.write();
  c->key_scales.write();
  c->value_scales.write();
}

struct Named {
  const char* name;
  const AttentionPath* path;
};

std::vector<Named> paths() {
  std::vector<Named> all = {{"reference", attention_reference()}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.push_back({"avx2", attention_avx2()});
#endif
#if defined(__aarch64__) && defined(MAGNITUDE_NEON)
  all.push_back({"neon", attention_neon()});
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) all.push_back({"dotprod", attention_dotprod()});
#endif
  return all;
}

int main_with(int count, char** arguments) {
  if (count < 2) {
    for (const Named& named : paths()) printf("%s\n", named.name);
    return 0;
  }
  const AttentionPath* path = nullptr;
  for (const Named& named : paths()) {
    if (strcmp(named.name, arguments[1]) == 0) path = named.path;
  }
  if (path == nullptr) {
    fprintf(stderr, "no path %s here\n", arguments[1]);
    return 2;
  }
  Header header;
  while (fread(&header, sizeof header, 1, stdin) == 1) {
    Case c(header);
    for (Buffer* buffer : {&c.keys, &c.values, &c.key_scales, &c.value_scales, &c.slots, &c.positions}) buffer->read();
    if (header.operation == kAppend) {
      run_append(&c);
    } else {
      run_attend(*path, &c);
    }
  }
  return 0;
}

}  // namespace
}  // namespace magnitude

int main(int count, char** arguments) { return magnitude::main_with(count, arguments); }
