#include "attention_run.h"

#include "counters.h"
#include "dispatch.h"
#include "error.h"
#include "pool.h"
#include "scratch.h"

namespace magnitude {
namespace {

void append_heads(void* context, int64_t begin, int64_t end) {
  const AppendCall& call = *static_cast<const AppendCall*>(context);
  for (int64_t task = begin; task < end; ++task) append(call, task);
}

struct Attending {
  const AttentionPath* path;
  const AttentionCall* call;
  void* workspace;
};

void attend_tasks(void* context, int64_t begin, int64_t end) {
  const Attending& attending = *static_cast<const Attending*>(context);
  for (int64_t task = begin; task < end; ++task) {
    attend(*attending.path, *attending.call, attending.workspace, task);
  }
}

// Multiplications of all rows and heads, for scores and for values.
int64_t multiplications(const AttentionCall& call) {
  int64_t seen = 0;
  for (int64_t row = 0; row < call.rows.rows; ++row) {
    const int64_t before = call.rows.positions[row] + 1;
    seen += call.window > 0 && before > call.window ? call.window : before;
  }
  return 2 * seen * call.heads * call.cache.head_size;
}

// Of a call that was checked.
void append_all(const AppendCall& call) {
  const int64_t tasks = append_tasks(call);
  if (tasks == 0) return;
  const int64_t numbers = 2 * call.rows.rows * call.cache.head_size;
  // Of a key or value of one head: the numbers themselves, and over bytes their scale.
  const int64_t bytes = call.cache.kind == CacheKind::kBytes ? call.cache.head_size + 4 : 4 * call.cache.head_size;
  const Counted counted(Operator::kAppend, 0, 2 * call.rows.rows * call.cache.kv_heads * bytes, call.rows.rows);
  // Rounding a number costs about as much as ten multiplications.
  run_tasks(tasks, 10 * numbers, append_heads, const_cast<AppendCall*>(&call));
}

void attend_all(const AttentionCall& call, void* workspace) {
  const Counted counted(call.cache.kind == CacheKind::kBytes ? Operator::kAttentionOverBytes : Operator::kAttention, 0,
                        attention_bytes_read(call), call.rows.rows);
  const int64_t tasks = plan_attention(call, workspace);
  if (tasks == 0) return;
  Attending attending{isa().attention, &call, workspace};
  run_tasks(tasks, multiplications(call) / tasks, attend_tasks, &attending);
}

struct Rotating {
  const Rotation* rotation;
  const AppendCall* appending;
  const AttentionCall* attending;
  float* queries;
  float* keys;
};

void rotate_rows(void* context, int64_t begin, int64_t end) {
  const Rotating& call = *static_cast<const Rotating*>(context);
  const AttentionCall& attending = *call.attending;
  const int64_t heads = attending.heads, kv_heads = attending.cache.kv_heads, head_size = attending.cache.head_size;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t position = attending.rows.positions[row];
    rotate_row(*call.rotation, attending.queries + row * attending.queries_stride, heads, head_size, position,
               call.queries + row * heads * head_size);
    rotate_row(*call.rotation, call.appending->keys + row * call.appending->keys_stride, kv_heads, head_size, position,
               call.keys + row * kv_heads * head_size);
  }
}

}  // namespace

int run_append(const AppendCall& call) {
  if (check_append(call) != 0) return -1;
  append_all(call);
  return 0;
}

int run_attention(AttentionCall call) { return run_step(Rotation{}, nullptr, call); }

int run_step(const Rotation& rotation, const AppendCall* given, AttentionCall attending) {
  attending.threads = pool_threads();
  if (given != nullptr && check_append(*given) != 0) return -1;
  if (check_attention(attending) != 0) return -1;
  const int64_t rows = attending.rows.rows, head_size = attending.cache.head_size;
  if (check_rotation(rotation, head_size, rows, attending.rows.positions) != 0) return -1;
  if (rows == 0) return 0;
  const bool rotates = given != nullptr && rotation.cosines != nullptr;
  AppendCall appending = given != nullptr ? *given : AppendCall{};
  const int64_t floats = static_cast<int64_t>(sizeof(float));
  const int64_t query_bytes = rotates ? aligned(rows * attending.heads * head_size * floats) : 0;
  const int64_t key_bytes = rotates ? aligned(rows * attending.cache.kv_heads * head_size * floats) : 0;
  const int64_t bytes = query_bytes + key_bytes + attention_workspace_bytes(attending);
  const Scratch scratch(static_cast<size_t>(bytes));
  if (scratch.data() == nullptr) return fail("no memory for %lld bytes of attention", static_cast<long long>(bytes));
  if (rotates) {
    float* queries = reinterpret_cast<float*>(scratch.data());
    float* keys = reinterpret_cast<float*>(scratch.data() + query_bytes);
    Rotating call{&rotation, &appending, &attending, queries, keys};
    // Four multiplications and two additions for two numbers, which compilers do four or eight at a time.
    run_tasks(rows, (attending.heads + attending.cache.kv_heads) * head_size, rotate_rows, &call);
    attending.queries = queries;
    attending.queries_bytes = query_bytes;
    attending.queries_stride = attending.heads * head_size;
    appending.keys = keys;
    appending.keys_bytes = key_bytes;
    appending.keys_stride = attending.cache.kv_heads * head_size;
  }
  if (given != nullptr) append_all(appending);
  attend_all(attending, scratch.data() + query_bytes + key_bytes);
  return 0;
}

}  // namespace magnitude
