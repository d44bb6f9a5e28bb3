// The arithmetic of attention.h for one instruction set, as templates over
//   Lanes  the eight floats of lanes.h,
//   Bytes  the two integer products over a cache in bytes:
//     struct Queries
//         query vectors in the form that scores() likes.
//     set_query(queries, i, int16_t* words, size)
//         words in -16319…16319: size of them, then zeros to a multiple of 16.
//     scores(queries, n, keys, stride, size, begin, end, out)
//         out[i · kSegment + p] = Σ over d of words of query i · keys[p · stride + d], for p in begin…end - 1; also
//         writes anything for other p up to the next multiples of 8, and leaves the rest as it is.
//     weigh(weights, n, values, stride, size, begin, end, out)
//         out[i · size + d] = Σ over p in begin…end - 1 of weights[i · kSegment + p] · values[p · stride + d]; weights
//         are in 0…16319, and 0 for other p up to the next multiples of 8.
//   Neither reads keys or values of other positions than begin…end - 1.
// Sums of integers stay far from overflow: 16319 · 127 · 256 is a quarter of 2³¹.
#ifndef MAGNITUDE_KERNELS_ATTENTION_ARITHMETIC_H_
#define MAGNITUDE_KERNELS_ATTENTION_ARITHMETIC_H_

#include <math.h>
#include <string.h>

#include "attention_path.h"
#include "exponential.h"
#include "lanes.h"

namespace magnitude {
namespace {

constexpr float kSteps = 16319;

// What is smaller counts as zero, like in the cache: far above where quotients by it would overflow.
constexpr float kSmallest = 0x1p-100f;

constexpr int64_t kCacheLine = 64;

// Positions whose values are asked for before the scores of as many keys are computed: one to two microseconds ahead.
constexpr int64_t kAhead = 16;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t lanes_below(int64_t position) { return position / kLanes * kLanes; }
inline int64_t lanes_above(int64_t position) { return (position + kLanes - 1) / kLanes * kLanes; }

// Positions of one segment, counted from its begin. Empty: begin >= end.
struct Range {
  int64_t begin;
  int64_t end;
  bool empty() const { return begin >= end; }
};

// Of one query in one segment; the weighted sum of values is apart.
struct SegmentSums {
  float top;   // the largest score, in units of log 2
  float mass;  // Σ 2^(score - top)
};

template <class Lanes, class Bytes>
class Attention {
  using F = typename Lanes::F;

 public:
  explicit Attention(const AttentionTask& task) : task_(task) {}

  void attend() {
    if (task_.kind == CacheKind::kBytes) {
      round_queries();
    } else {
      scale_queries();
    }
    bool started[kMaxQueries] = {};
    end_ = 0;
    for (int i = 0; i < task_.queries; ++i) end_ = larger(end_, task_.end[i]);
    end_ = smaller(end_, (task_.last_segment + 1) * kSegment);
    for (int64_t segment = task_.first_segment; segment <= task_.last_segment; ++segment) {
      const Range seen = ranges_of(segment);
      if (seen.empty()) continue;
      if (task_.kind == CacheKind::kBytes) {
        segment_of_bytes(segment, seen);
      } else {
        segment_of_floats(segment, seen);
      }
      for (int i = 0; i < task_.queries; ++i) {
        if (range_[i].empty()) continue;
        if (task_.partial != nullptr) {
          store_partial(i, segment);
        } else {
          merge_into(task_.out[i], &total_[i], &started[i], sums_[i], part_ + i * size());
        }
      }
    }
    if (task_.partial != nullptr) return;
    for (int i = 0; i < task_.queries; ++i) divide(task_.out[i], total_[i].mass);
  }

  void merge() {
    const int64_t length = partial_floats(size());
    for (int i = 0; i < task_.queries; ++i) {
      bool started = false;
      const int64_t last = (task_.end[i] - 1) / kSegment;
      for (int64_t segment = task_.begin[i] / kSegment; segment <= last; ++segment) {
        const float* partial = task_.partial + (i * task_.partial_segments + segment - task_.partial_first) * length;
        merge_into(task_.out[i], &total_[i], &started, {partial[size()], partial[size() + 1]}, partial);
      }
      divide(task_.out[i], total_[i].mass);
    }
  }

 private:
  int64_t size() const { return task_.head_size; }

  // Sets which positions of the segment each query sees; returns those that any of them does.
  Range ranges_of(int64_t segment) {
    Range seen = {kSegment, 0};
    for (int i = 0; i < task_.queries; ++i) {
      range_[i].begin = larger(task_.begin[i] - segment * kSegment, 0);
      range_[i].end = smaller(task_.end[i] - segment * kSegment, kSegment);
      if (range_[i].empty()) continue;
      seen.begin = smaller(seen.begin, range_[i].begin);
      seen.end = larger(seen.end, range_[i].end);
    }
    return seen;
  }

  void round_queries() {
    for (int i = 0; i < task_.queries; ++i) {
      const float* query = task_.query[i];
      F top = Lanes::all(0);
      for (int64_t d = 0; d < size(); d += kLanes) top = Lanes::max_bits(top, Lanes::abs(Lanes::load(query + d)));
      const float largest = Lanes::top_bits(top);
      // Not a number, or none that matters: the words are any or zero, and what they are multiplied with decides.
      const F inverse = Lanes::all(largest >= kSmallest && largest < INFINITY ? kSteps / largest : 0.0f);
      alignas(64) int16_t words[kMaxHeadSize];
      for (int64_t d = 0; d < size(); d += kLanes) {
        Lanes::store_rounded(words + d, Lanes::mul(Lanes::load(query + d), inverse));
      }
      if (size() % 16 != 0) memset(words + size(), 0, 8 * sizeof(int16_t));
      Bytes::set_query(&queries_, i, words, size());
      factor_[i] = largest < kSmallest ? 0.0f : largest < INFINITY ? largest / kSteps * (task_.scale * kLog2E) : NAN;
    }
  }

  void scale_queries() {
    const F factor = Lanes::all(task_.scale * kLog2E);
    for (int i = 0; i < task_.queries; ++i) {
      for (int64_t d = 0; d < size(); d += kLanes) {
        Lanes::store(scaled_ + i * size() + d, Lanes::mul(Lanes::load(task_.query[i] + d), factor));
      }
    }
  }

  // Scores to weights, in place, for the lanes that the range touches: zero where it does not reach.
  SegmentSums weights_of(float* scores, Range range) {
    const int64_t begin = lanes_below(range.begin);
    const int64_t end = lanes_above(range.end);
    for (int64_t p = begin; p < range.begin; ++p) scores[p] = -INFINITY;
    for (int64_t p = range.end; p < end; ++p) scores[p] = -INFINITY;
    F tops = Lanes::load(scores + begin);
    for (int64_t p = begin + kLanes; p < end; p += kLanes) tops = Lanes::max(tops, Lanes::load(scores + p));
    const float top = Lanes::top(tops);
    F mass = Lanes::all(0);
    for (int64_t p = begin; p < end; p += kLanes) {
      const F weight = power_of_two<Lanes>(Lanes::sub(Lanes::load(scores + p), Lanes::all(top)));
      mass = Lanes::add(mass, weight);
      Lanes::store(scores + p, weight);
    }
    return {top, Lanes::sum(mass)};
  }

  void segment_of_bytes(int64_t segment, Range seen) {
    const int64_t at = segment * kSegment;
    const int64_t begin = lanes_below(seen.begin);
    const int64_t end = lanes_above(seen.end);
    const int8_t* keys = static_cast<const int8_t*>(task_.keys) + at * task_.position_stride;
    const int8_t* values = static_cast<const int8_t*>(task_.values) + at * task_.position_stride;
    copy_scales(key_scales_, task_.key_scales + at, seen, begin, end);
    copy_scales(value_scales_, task_.value_scales + at, seen, begin, end);
    for (int64_t p = seen.begin; p < seen.end;) {
      const int64_t next = smaller(lanes_below(p) + kAhead, seen.end);
      ask_for(values, p, next);
      Bytes::scores(queries_, task_.queries, keys, task_.position_stride, size(), p, next, products_);
      p = next;
    }
    for (int i = 0; i < task_.queries; ++i) {
      int16_t* weights = weights_ + i * kSegment;
      const Range range = range_[i];
      ask_for_next(keys, segment, i);
      if (range.begin > seen.begin || range.end < seen.end || range.empty()) {
        memset(weights, 0, kSegment * sizeof(int16_t));
      }
      if (range.empty()) continue;
      float* scores = scores_;
      const F factor = Lanes::all(factor_[i]);
      for (int64_t p = lanes_below(range.begin); p < range.end; p += kLanes) {
        const F product = Lanes::from_ints(products_ + i * kSegment + p);
        Lanes::store(scores + p, Lanes::mul(Lanes::mul(product, Lanes::load(key_scales_ + p)), factor));
      }
      sums_[i] = weights_of(scores, range);
      steps_[i] = round_weights(scores, range, weights);
    }
    // Lanes outside what is seen hold nothing but zeros: weights_of made them.
    Bytes::weigh(weights_, task_.queries, values, task_.position_stride, size(), seen.begin, seen.end, products_);
    for (int i = 0; i < task_.queries; ++i) {
      if (range_[i].empty()) continue;
      const F step = Lanes::all(steps_[i]);
      for (int64_t d = i * size(); d < (i + 1) * size(); d += kLanes) {
        Lanes::store(part_ + d, Lanes::mul(Lanes::from_ints(products_ + d), step));
      }
    }
  }

  // Has the memory of some positions fetched before it is used: the processor sees a stream only while it is read, and
  // between two segments it is not.
  template <class Element>
  void ask_for(const Element* rows, int64_t begin, int64_t end) const {
    constexpr int64_t kElements = kCacheLine / static_cast<int64_t>(sizeof(Element));
    for (int64_t p = begin; p < end; ++p) {
      const Element* row = rows + p * task_.position_stride;
      for (int64_t d = 0; d < size(); d += kElements) __builtin_prefetch(row + d);
    }
  }

  // The same for query i's share of the next segment's rows.
  template <class Element>
  void ask_for_next(const Element* rows, int64_t segment, int i) const {
    const int64_t positions = smaller(end_ - (segment + 1) * kSegment, kSegment);
    if (positions <= 0) return;
    ask_for(rows + kSegment * task_.position_stride, positions * i / task_.queries,
            positions * (i + 1) / task_.queries);
  }

  static void copy_scales(float* to, const float* from, Range seen, int64_t begin, int64_t end) {
    for (int64_t p = begin; p < seen.begin; ++p) to[p] = 0;
    memcpy(to + seen.begin, from + seen.begin, static_cast<size_t>(seen.end - seen.begin) * sizeof(float));
    for (int64_t p = seen.end; p < end; ++p) to[p] = 0;
  }

  // Weight · value scale in steps of the largest one; returns what a step is.
  float round_weights(float* weights, Range range, int16_t* rounded) const {
    const int64_t begin = lanes_below(range.begin);
    F top = Lanes::all(0);
    for (int64_t p = begin; p < range.end; p += kLanes) {
      const F weight = Lanes::load(weights + p);
      // A position that is not seen may have any scale.
      const F scaled = Lanes::where_positive(weight, Lanes::mul(weight, Lanes::load(value_scales_ + p)));
      top = Lanes::max_bits(top, scaled);
      Lanes::store(weights + p, scaled);
    }
    const float largest = Lanes::top_bits(top);
    const F inverse = Lanes::all(largest >= kSmallest ? kSteps / largest : 0.0f);
    for (int64_t p = begin; p < range.end; p += kLanes) {
      Lanes::store_rounded(rounded + p, Lanes::mul(Lanes::load(weights + p), inverse));
    }
    return largest / kSteps;
  }

  void segment_of_floats(int64_t segment, Range seen) {
    const int64_t at = segment * kSegment;
    const int64_t stride = task_.position_stride;
    const float* keys = static_cast<const float*>(task_.keys) + at * stride;
    const float* values = static_cast<const float*>(task_.values) + at * stride;
    float_scores(keys, values, seen);
    Range common = {0, kSegment};
    for (int i = 0; i < task_.queries; ++i) {
      ask_for_next(keys, segment, i);
      if (range_[i].empty()) continue;
      sums_[i] = weights_of(float_scores_ + i * kSegment, range_[i]);
      common.begin = larger(common.begin, range_[i].begin);
      common.end = smaller(common.end, range_[i].end);
    }
    memset(part_, 0, static_cast<size_t>(task_.queries * size()) * sizeof(float));
    for (int i = 0; i < task_.queries; i += 2) {
      const bool pair = i + 1 < task_.queries && !range_[i].empty() && !range_[i + 1].empty() && !common.empty();
      if (pair) {
        // In ascending order: what only one of them sees, what both do, the rest.
        for (int j = i; j < i + 2; ++j) float_weigh<1>(values, j, {range_[j].begin, common.begin});
        float_weigh<2>(values, i, common);
        for (int j = i; j < i + 2; ++j) float_weigh<1>(values, j, {common.end, range_[j].end});
      } else {
        for (int j = i; j < smaller(i + 2, task_.queries); ++j) float_weigh<1>(values, j, range_[j]);
      }
    }
  }

  void float_scores(const float* keys, const float* values, Range seen) {
    for (int64_t p = lanes_below(seen.begin); p < seen.end; p += kLanes) {
      ask_for(values, larger(p, seen.begin), smaller(p + kLanes, seen.end));
      // Keys outside what is seen are not read; their places get the score of a neighbour, and no weight.
      const float* rows[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        rows[j] = keys + smaller(larger(p + j, seen.begin), seen.end - 1) * task_.position_stride;
      }
      int i = 0;
      for (; i + 2 <= task_.queries; i += 2) {
        float* out = float_scores_ + i * kSegment + p;
        const F low = dots_of_two(scaled_ + i * size(), rows);
        const F high = dots_of_two(scaled_ + i * size(), rows + 4);
        float lanes[2][kLanes];
        Lanes::store(lanes[0], low);
        Lanes::store(lanes[1], high);
        for (int j = 0; j < 2; ++j) {
          memcpy(out + j * kSegment, lanes[0] + 4 * j, 4 * sizeof(float));
          memcpy(out + j * kSegment + 4, lanes[1] + 4 * j, 4 * sizeof(float));
        }
      }
      if (i < task_.queries) {
        F sums[kLanes];
        for (int j = 0; j < kLanes; ++j) sums[j] = Lanes::all(0);
        for (int64_t d = 0; d < size(); d += kLanes) {
          const F query = Lanes::load(scaled_ + i * size() + d);
          for (int j = 0; j < kLanes; ++j) sums[j] = Lanes::fma(query, Lanes::load(rows[j] + d), sums[j]);
        }
        Lanes::store(float_scores_ + i * kSegment + p, Lanes::sums(sums));
      }
    }
  }

  // Lanes 0…3: the first query with four rows; 4…7: the second.
  F dots_of_two(const float* queries, const float* const* rows) const {
    F sums[kLanes];
    for (int j = 0; j < kLanes; ++j) sums[j] = Lanes::all(0);
    for (int64_t d = 0; d < size(); d += kLanes) {
      const F first = Lanes::load(queries + d);
      const F second = Lanes::load(queries + size() + d);
      for (int j = 0; j < 4; ++j) {
        const F key = Lanes::load(rows[j] + d);
        sums[j] = Lanes::fma(first, key, sums[j]);
        sums[4 + j] = Lanes::fma(second, key, sums[4 + j]);
      }
    }
    return Lanes::sums(sums);
  }

  // Adds the range's values by weight to part_ of `kQueries` queries from `first` on. (kQueries of them share loads.)
  template <int kQueries>
  void float_weigh(const float* values, int first, Range range) {
    int64_t d = 0;
    for (; d + 4 * kLanes <= size(); d += 4 * kLanes) float_weigh_columns<kQueries, 4>(values + d, first, d, range);
    for (; d < size(); d += kLanes) float_weigh_columns<kQueries, 1>(values + d, first, d, range);
  }

  template <int kQueries, int kColumns>
  void float_weigh_columns(const float* values, int first, int64_t d, Range range) {
    F sums[kQueries][kColumns];
    for (int i = 0; i < kQueries; ++i) {
      for (int c = 0; c < kColumns; ++c) sums[i][c] = Lanes::load(part_ + (first + i) * size() + d + c * kLanes);
    }
    for (int64_t p = range.begin; p < range.end; ++p) {
      const float* row = values + p * task_.position_stride;
      F weights[kQueries];
      for (int i = 0; i < kQueries; ++i) weights[i] = Lanes::all(float_scores_[(first + i) * kSegment + p]);
      for (int c = 0; c < kColumns; ++c) {
        const F value = Lanes::load(row + c * kLanes);
        for (int i = 0; i < kQueries; ++i) sums[i][c] = Lanes::fma(weights[i], value, sums[i][c]);
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      for (int c = 0; c < kColumns; ++c) Lanes::store(part_ + (first + i) * size() + d + c * kLanes, sums[i][c]);
    }
  }

  void store_partial(int i, int64_t segment) const {
    const int64_t length = partial_floats(size());
    float* partial = task_.partial + (i * task_.partial_segments + segment - task_.partial_first) * length;
    memcpy(partial, part_ + i * size(), static_cast<size_t>(size()) * sizeof(float));
    partial[size()] = sums_[i].top;
    partial[size() + 1] = sums_[i].mass;
  }

  // One more segment into what `out` and `total` hold, which is nothing before they are started.
  void merge_into(float* out, SegmentSums* total, bool* started, SegmentSums sums, const float* part) const {
    if (!*started) {
      *started = true;
      *total = sums;
      memcpy(out, part, static_cast<size_t>(size()) * sizeof(float));
      return;
    }
    const float top = total->top > sums.top ? total->top : sums.top;
    const F old_factor = power_of_two<Lanes>(Lanes::all(total->top - top));
    const F new_factor = power_of_two<Lanes>(Lanes::all(sums.top - top));
    const F mass = Lanes::mul(Lanes::all(total->mass), old_factor);
    total->mass = first_lane(Lanes::fma(Lanes::all(sums.mass), new_factor, mass));
    total->top = top;
    for (int64_t d = 0; d < size(); d += kLanes) {
      const F old = Lanes::mul(Lanes::load(out + d), old_factor);
      Lanes::store(out + d, Lanes::fma(Lanes::load(part + d), new_factor, old));
    }
  }

  static float first_lane(F a) {
    float lanes[kLanes];
    Lanes::store(lanes, a);
    return lanes[0];
  }

  void divide(float* out, float mass) const {
    const F inverse = Lanes::all(1.0f / mass);
    for (int64_t d = 0; d < size(); d += kLanes) Lanes::store(out + d, Lanes::mul(Lanes::load(out + d), inverse));
  }

  const AttentionTask& task_;
  int64_t end_;  // of the positions that any query sees in the task's segments
  Range range_[kMaxQueries];
  SegmentSums sums_[kMaxQueries];
  SegmentSums total_[kMaxQueries];
  float factor_[kMaxQueries];  // of a product of integers and a key's scale: the score in units of log 2
  float steps_[kMaxQueries];
  typename Bytes::Queries queries_;
  alignas(64) float key_scales_[kSegment];
  alignas(64) float value_scales_[kSegment];
  alignas(64) float scores_[kSegment];
  alignas(64) int16_t weights_[kMaxQueries * kSegment];
  alignas(64) int32_t products_[kMaxQueries * (kSegment > kMaxHeadSize ? kSegment : kMaxHeadSize)];
  alignas(64) float part_[kMaxQueries * kMaxHeadSize];
  alignas(64) float scaled_[kMaxQueries * kMaxHeadSize];
  alignas(64) float float_scores_[kMaxQueries * kSegment];
};

// One object on the stack (about 70 KiB, of which small heads touch a third).
template <class Lanes, class Bytes>
void attend_with(const AttentionTask& task) {
  Attention<Lanes, Bytes>(task).attend();
}

template <class Lanes, class Bytes>
void merge_with(const AttentionTask& task) {
  Attention<Lanes, Bytes>(task).merge();
}

}  // namespace
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_ATTENTION_ARITHMETIC_H_
