#include "attention.h"

#include <string.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "attention_path.h"
#include "checks.h"
#include "error.h"
#include "scratch.h"

namespace magnitude {
namespace {

// Tasks a thread, so that a thread that is slower than the others does not leave them waiting for long.
constexpr int64_t kTasksPerThread = 4;

// Segments that are worth a task of their own: 256 positions take some microseconds, waking a thread one.
constexpr int64_t kSegmentsPerTask = 2;

// Rows of one slot that share passes over the cache, and how their work is cut.
struct Block {
  int64_t first_row;
  int64_t rows;
  int64_t first_segment;
  int64_t segments;
  int64_t chunks;  // tasks that share the segments
  int64_t first_task;
  int64_t partials_at;  // in floats from the plan's partials; only with more than one chunk
  int64_t counters_at;
};

// What a plan says of each group: a KV head and a part of its query heads.
struct Shape {
  int64_t group;       // query heads of a KV head
  int64_t parts;       // in which they are taken, when they are too many for one pass
  int64_t part_heads;  // query heads of a part; fewer in the last
  int64_t block_rows;
};

// At the begin of a workspace; blocks, counters and partials follow.
struct Plan {
  Shape shape;
  int64_t blocks;
  int64_t tasks;
  int64_t counters_at;  // in bytes
  int64_t partials_at;
};

int64_t first_position(const AttentionCall& call, int64_t row) {
  const int64_t position = call.rows.positions[row];
  return call.window > 0 ? std::max<int64_t>(0, position - call.window + 1) : 0;
}

Shape shape_of(const AttentionCall& call) {
  Shape shape;
  shape.group = call.heads / call.cache.kv_heads;
  shape.parts = (shape.group + kMaxQueries - 1) / kMaxQueries;
  shape.part_heads = (shape.group + shape.parts - 1) / shape.parts;
  shape.block_rows = std::max<int64_t>(1, kMaxQueries / shape.part_heads);
  return shape;
}

// Calls visit(block) for each block of rows: rows that follow each other in the call, of one slot, none of them
// padding.
template <class Visit>
void each_block(const AttentionCall& call, const Shape& shape, Visit visit) {
  const int64_t* positions = call.rows.positions;
  for (int64_t row = 0; row < call.rows.rows;) {
    if (positions[row] < 0) {
      ++row;
      continue;
    }
    Block block = {};
    block.first_row = row;
    int64_t begin = first_position(call, row);
    int64_t end = positions[row];
    for (++row; row < call.rows.rows && row - block.first_row < shape.block_rows; ++row) {
      if (positions[row] < 0 || call.rows.slots[row] != call.rows.slots[block.first_row]) break;
      begin = std::min(begin, first_position(call, row));
      end = std::max(end, positions[row]);
    }
    block.rows = row - block.first_row;
    block.first_segment = begin / kSegment;
    block.segments = end / kSegment - block.first_segment + 1;
    visit(block);
  }
}

// Into how many tasks the segments of each block are cut, so that all threads have something to do.
int64_t chunks_of(const AttentionCall& call, int64_t groups, int64_t segments) {
  const int64_t wanted = call.threads > 1 ? call.threads * kTasksPerThread : 1;
  if (groups >= wanted) return 1;
  const int64_t most = (segments + kSegmentsPerTask - 1) / kSegmentsPerTask;
  return std::min((wanted + groups - 1) / groups, most);
}

// Lays out a workspace; with blocks, writes them. Returns its size in bytes.
int64_t lay_out(const AttentionCall& call, Plan* plan, Block* blocks) {
  plan->shape = shape_of(call);
  plan->blocks = 0;
  each_block(call, plan->shape, [&](const Block&) { ++plan->blocks; });
  const int64_t groups_of_block = call.cache.kv_heads * plan->shape.parts;
  int64_t counters = 0;
  int64_t partials = 0;
  int64_t index = 0;
  plan->tasks = 0;
  each_block(call, plan->shape, [&](Block block) {
    block.chunks = chunks_of(call, plan->blocks * groups_of_block, block.segments);
    block.first_task = plan->tasks;
    plan->tasks += groups_of_block * block.chunks;
    if (block.chunks > 1) {
      block.counters_at = counters;
      block.partials_at = partials;
      counters += groups_of_block;
      partials += groups_of_block * block.rows * plan->shape.part_heads * block.segments *
                  partial_floats(call.cache.head_size);
    }
    if (blocks != nullptr) blocks[index] = block;
    ++index;
  });
  plan->counters_at = aligned(static_cast<int64_t>(sizeof(Plan)) + plan->blocks * static_cast<int64_t>(sizeof(Block)));
  plan->partials_at = aligned(plan->counters_at + counters * static_cast<int64_t>(sizeof(std::atomic<int64_t>)));
  return aligned(plan->partials_at + partials * static_cast<int64_t>(sizeof(float)));
}

Block* blocks_of(void* workspace) {
  static_assert(sizeof(Plan) % alignof(Block) == 0, "blocks follow the plan");
  return reinterpret_cast<Block*>(static_cast<char*>(workspace) + sizeof(Plan));
}

std::atomic<int64_t>* counters_of(void* workspace, const Plan& plan) {
  return reinterpret_cast<std::atomic<int64_t>*>(static_cast<char*>(workspace) + plan.counters_at);
}

void zero_padding(const AttentionCall& call) {
  const size_t bytes = static_cast<size_t>(call.heads * call.cache.head_size) * sizeof(float);
  for (int64_t row = 0; row < call.rows.rows; ++row) {
    if (call.rows.positions[row] < 0) memset(call.out + row * call.out_stride, 0, bytes);
  }
}

// Where one KV head of one slot begins.
void point_at_head(const AttentionCall& call, int64_t slot, int64_t kv_head, AttentionTask* task) {
  const KvCache& cache = call.cache;
  task->kind = cache.kind;
  task->position_stride = cache.position_stride;
  task->head_size = cache.head_size;
  task->scale = call.scale;
  const int64_t at = slot * cache.slot_stride + kv_head * cache.head_stride;
  if (cache.kind == CacheKind::kFloat) {
    task->keys = static_cast<const float*>(cache.keys) + at;
    task->values = static_cast<const float*>(cache.values) + at;
    task->key_scales = task->value_scales = nullptr;
    return;
  }
  const int64_t scales_at = slot * cache.scale_slot_stride + kv_head * cache.scale_head_stride;
  task->keys = static_cast<const int8_t*>(cache.keys) + at;
  task->values = static_cast<const int8_t*>(cache.values) + at;
  task->key_scales = cache.key_scales + scales_at;
  task->value_scales = cache.value_scales + scales_at;
}

// The query vectors of a block's rows for query heads first_head…first_head + heads - 1.
void point_at_queries(const AttentionCall& call, const Block& block, int64_t first_head, int64_t heads,
                      AttentionTask* task) {
  task->queries = 0;
  for (int64_t row = block.first_row; row < block.first_row + block.rows; ++row) {
    for (int64_t head = first_head; head < first_head + heads; ++head) {
      const int i = task->queries++;
      task->query[i] = call.queries + row * call.queries_stride + head * call.cache.head_size;
      task->out[i] = call.out + row * call.out_stride + head * call.cache.head_size;
      task->begin[i] = first_position(call, row);
      task->end[i] = call.rows.positions[row] + 1;
    }
  }
}

}  // namespace

int check_attention(const AttentionCall& call) {
  if (check_cache(call.cache) != 0 || check_rows(call.cache, call.rows) != 0) return -1;
  const int64_t rows = call.rows.rows;
  if (call.heads < 1 || call.heads % call.cache.kv_heads != 0) {
    return fail("%lld query heads for %lld KV heads", static_cast<long long>(call.heads),
                static_cast<long long>(call.cache.kv_heads));
  }
  if (call.window < 0) return fail("a window of %lld positions", static_cast<long long>(call.window));
  if (call.threads < 1 || call.threads > INT32_MAX) {
    return fail("%lld threads for attention", static_cast<long long>(call.threads));
  }
  const Length width = Length(call.heads).times(call.cache.head_size);
  if (!span(rows, call.queries_stride, width).times(sizeof(float)).within(call.queries_bytes)) {
    return fail("queries of %lld bytes are shorter than %lld rows", static_cast<long long>(call.queries_bytes),
                static_cast<long long>(rows));
  }
  if (!span(rows, call.out_stride, width).times(sizeof(float)).within(call.out_bytes)) {
    return fail("room for results of %lld bytes is shorter than %lld rows", static_cast<long long>(call.out_bytes),
                static_cast<long long>(rows));
  }
  if (rows > 1 && !width.within(call.out_stride)) return fail("rows of results overlap");
  if (rows == 0) return 0;
  if (call.queries == nullptr || call.out == nullptr) return fail("queries or room for results are null");
  if (!aligned_for_float(call.queries) || !aligned_for_float(call.out)) {
    return fail("queries or room for results are not aligned for floats");
  }
  return 0;
}

int64_t attention_workspace_bytes(const AttentionCall& call) {
  Plan plan;
  return lay_out(call, &plan, nullptr);
}

int64_t plan_attention(const AttentionCall& call, void* workspace) {
  Plan* plan = new (workspace) Plan;
  Block* blocks = blocks_of(workspace);
  lay_out(call, plan, blocks);
  std::atomic<int64_t>* counters = counters_of(workspace, *plan);
  const int64_t groups = call.cache.kv_heads * plan->shape.parts;
  for (int64_t i = 0; i < plan->blocks; ++i) {
    if (blocks[i].chunks == 1) continue;
    std::atomic<int64_t>* first = counters + blocks[i].counters_at;
    for (int64_t j = 0; j < groups; ++j) new (first + j) std::atomic<int64_t>(blocks[i].chunks);
  }
  zero_padding(call);
  return plan->tasks;
}

void attend(const AttentionPath& path, const AttentionCall& call, void* workspace, int64_t task_index) {
  const Plan& plan = *static_cast<const Plan*>(workspace);
  const Block* blocks = blocks_of(workspace);
  // Rows of a prompt see the more the later they come; the longest tasks go first, so that none is left for the end.
  const int64_t index = plan.tasks - 1 - task_index;
  const Block& block = *(std::upper_bound(blocks, blocks + plan.blocks, index,
                                          [](int64_t at, const Block& b) { return at < b.first_task; }) -
                         1);
  const int64_t group = (index - block.first_task) / block.chunks;
  const int64_t chunk = (index - block.first_task) % block.chunks;
  const int64_t kv_head = group / plan.shape.parts;
  const int64_t part_head = group % plan.shape.parts * plan.shape.part_heads;

  AttentionTask task;
  point_at_head(call, call.rows.slots[block.first_row], kv_head, &task);
  point_at_queries(call, block, kv_head * plan.shape.group + part_head,
                   std::min(plan.shape.part_heads, plan.shape.group - part_head), &task);
  task.first_segment = block.first_segment + block.segments * chunk / block.chunks;
  task.last_segment = block.first_segment + block.segments * (chunk + 1) / block.chunks - 1;
  task.partial = nullptr;
  if (block.chunks == 1) {
    path.attend(task);
    return;
  }
  task.partial_first = block.first_segment;
  task.partial_segments = block.segments;
  task.partial = reinterpret_cast<float*>(static_cast<char*>(workspace) + plan.partials_at) + block.partials_at +
                 group * block.rows * plan.shape.part_heads * block.segments * partial_floats(call.cache.head_size);
  path.attend(task);
  // Release what was written here to whoever is last; acquire what all others wrote.
  std::atomic<int64_t>& left = counters_of(workspace, plan)[block.counters_at + group];
  if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) path.merge(task);
}

int64_t attention_bytes_read(const AttentionCall& call) {
  const int64_t scale_bytes = call.cache.kind == CacheKind::kBytes ? static_cast<int64_t>(sizeof(float)) : 0;
  const int64_t element_bytes = call.cache.kind == CacheKind::kBytes ? 1 : static_cast<int64_t>(sizeof(float));
  int64_t seen = 0;
  each_block(call, shape_of(call), [&](const Block& block) {
    int64_t begin = INT64_MAX;
    int64_t end = 0;
    for (int64_t row = block.first_row; row < block.first_row + block.rows; ++row) {
      begin = std::min(begin, first_position(call, row));
      end = std::max(end, call.rows.positions[row] + 1);
    }
    seen += end - begin;
  });
  return seen * call.cache.kv_heads * 2 * (call.cache.head_size * element_bytes + scale_bytes);
}

}  // namespace magnitude
