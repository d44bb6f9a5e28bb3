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

}  // namespace

int run_append(const AppendCall& call) {
  if (check_append(call) != 0) return -1;
  const int64_t tasks = append_tasks(call);
  if (call.rows.rows == 0 || tasks == 0) return 0;
  const int64_t numbers = 2 * call.rows.rows * call.cache.head_size;
  // Of a key or value of one head: the numbers themselves, and over bytes their scale.
  const int64_t bytes = call.cache.kind == CacheKind::kBytes ? call.cache.head_size + 4 : 4 * call.cache.head_size;
  const Counted counted(Operator::kAppend, 0, 2 * call.rows.rows * call.cache.kv_heads * bytes, call.rows.rows);
  // Rounding a number costs about as much as ten multiplications.
  run_tasks(tasks, 10 * numbers, append_heads, const_cast<AppendCall*>(&call));
  return 0;
}

int run_attention(AttentionCall call) {
  call.threads = pool_threads();
  if (check_attention(call) != 0) return -1;
  if (call.rows.rows == 0) return 0;
  const Counted counted(call.cache.kind == CacheKind::kBytes ? Operator::kAttentionOverBytes : Operator::kAttention, 0,
                        attention_bytes_read(call), call.rows.rows);
  const int64_t bytes = attention_workspace_bytes(call);
  const Scratch scratch(static_cast<size_t>(bytes));
  if (scratch.data() == nullptr) return fail("no memory for %lld bytes of attention", static_cast<long long>(bytes));
  const int64_t tasks = plan_attention(call, scratch.data());
  if (tasks == 0) return 0;
  Attending attending{isa().attention, &call, scratch.data()};
  run_tasks(tasks, multiplications(call) / tasks, attend_tasks, &attending);
  return 0;
}

}  // namespace magnitude
