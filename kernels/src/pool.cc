#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <mutex>
#include <new>

#include "error.h"

#ifndef MAGNITUDE_MAX_THREADS
#define MAGNITUDE_MAX_THREADS 64
#endif

namespace magnitude {
namespace {

constexpr int kMostThreads = MAGNITUDE_MAX_THREADS;

// The longest that a thread watches for the next call before it sleeps. Between two operators of a step lie some
// microseconds, and a sleeper comes 10 to 50 too late: a thread that has waited that long has lost nothing by sleeping.
constexpr int64_t kLongestWatch_ns = 50'000;
// The shortest: what it takes to go to sleep and be woken, so that less saves no processor time.
constexpr int64_t kShortestWatch_ns = 5'000;
int64_t within_bounds(int64_t watch_ns) { return std::clamp(watch_ns, kShortestWatch_ns, kLongestWatch_ns); }

// Looks between two looks at the clock, which costs some 20 ns.
constexpr int kLooksPerClock = 32;

// Below this many multiplications a call is not shared: about 4 µs of one core, against 1 µs for handing it over.
constexpr int64_t kWorthSharing = 1 << 17;

// Pieces that a thread's share is taken in. More even out uneven speeds, fewer cost less.
constexpr int64_t kPieces = 12;

// How often (in calls) the threads' affinity masks are read anew: a few system calls in about a decode step.
constexpr int kCallsPerMaskCheck = 256;

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // some tens of cycles; `yield` does nothing on most cores
#endif
}

void sleep_while(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

// What is left of one thread's share. On a cache line of its own: all threads write to these.
struct alignas(64) Share {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
  int64_t piece = 1;
};

// A call while it runs. Written by the caller while the gate is shut, read by those inside.
struct Call {
  Body body;
  void* context;
  int width;
  Share shares[kMostThreads];
};

struct alignas(64) Worker {
  pthread_t thread;
  std::atomic<uint32_t> asleep{0};
  int index;
};

// The gate through which workers enter a call: the number of the call, whether it is open, and how many are inside.
constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kInsideMask = kOpen - 1;
uint64_t call_number(uint64_t gate) { return gate >> 32; }

class Pool {
 public:
  void run(int64_t tasks, Body body, void* context);
  int set(int threads, const int* cores, const float* shares);
  int stop();
  int width() const { return width_.load(std::memory_order_relaxed); }

 private:
  static void* work(void* worker);
  void serve(Worker* worker);
  uint64_t wait_for_call(Worker* worker, uint64_t seen, int64_t* watch_ns);
  void take_part(int index);
  void open_gate();
  void shut_gate();
  bool make_worker();
  bool place(pthread_t thread, int core);
  void check_masks();

  std::mutex busy_;  // held by the caller of a run, and by whoever changes the pool
  std::atomic<int> width_{1};
  float shares_[kMostThreads];
  std::atomic<bool> may_watch_{false};
  std::atomic<bool> ending_{false};
  int calls_to_mask_check_ = 0;
  cpu_set_t mask_;  // where a thread that has no core of its own may run

  Call call_;
  alignas(64) std::atomic<uint64_t> gate_{0};
  std::atomic<uint32_t> caller_asleep_{0};
  Worker workers_[kMostThreads];  // 0 is the caller and stays empty
  int made_ = 0;                  // workers 1 … made_ exist
};

// Never destroyed: threads may still watch when static objects are.
Pool& pool() {
  alignas(Pool) static unsigned char place[sizeof(Pool)];
  static Pool* made = new (place) Pool;
  return *made;
}

// Set while this thread computes tasks, so that a body that runs tasks finds out.
thread_local bool inside_run = false;

// Set while this thread has a core that the pool gave it: then its mask does not say where it may run.
thread_local bool placed_caller = false;

void Pool::take_part(int index) {
  const int width = call_.width;
  inside_run = true;
  // One's own share first, then what others have left.
  for (int i = 0; i < width; ++i) {
    Share& share = call_.shares[(index + i) % width];
    for (;;) {
      // Looking first keeps `next` from growing without end, and a finished share's line shared.
      if (share.next.load(std::memory_order_relaxed) >= share.end) break;
      const int64_t begin = share.next.fetch_add(share.piece, std::memory_order_relaxed);
      if (begin >= share.end) break;
      const int64_t end = begin + share.piece < share.end ? begin + share.piece : share.end;
      call_.body(call_.context, begin, end);
    }
  }
  inside_run = false;
}

void Pool::open_gate() {
  const uint64_t number = call_number(gate_.load(std::memory_order_relaxed)) + 1;
  gate_.store(number << 32 | kOpen, std::memory_order_seq_cst);
  for (int i = 1; i < call_.width; ++i) {
    // Pairs with wait_for_call(): a worker first says that it sleeps and then looks at the gate once more.
    if (workers_[i].asleep.exchange(0, std::memory_order_seq_cst) != 0) wake(&workers_[i].asleep);
  }
}

void Pool::shut_gate() {
  // Those who have not entered by now are not waited for: all tasks are taken.
  uint64_t gate = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  const int64_t give_up_ns = now_ns() + kLongestWatch_ns;
  while ((gate & kInsideMask) != 0) {
    for (int i = 0; i < kLooksPerClock && (gate & kInsideMask) != 0; ++i) {
      relax();
      gate = gate_.load(std::memory_order_acquire);
    }
    if ((gate & kInsideMask) == 0) return;
    if (may_watch_.load(std::memory_order_relaxed) && now_ns() < give_up_ns) continue;
    caller_asleep_.store(1, std::memory_order_seq_cst);
    gate = gate_.load(std::memory_order_seq_cst);
    if ((gate & kInsideMask) != 0) sleep_while(&caller_asleep_, 1);
    caller_asleep_.store(0, std::memory_order_relaxed);
    gate = gate_.load(std::memory_order_acquire);
  }
}

void Pool::run(int64_t tasks, Body body, void* context) {
  std::unique_lock<std::mutex> mine(busy_, std::defer_lock);
  const int width = width_.load(std::memory_order_relaxed);
  if (width == 1 || tasks < 2 || inside_run || !mine.try_lock()) {
    body(context, 0, tasks);
    return;
  }
  if (--calls_to_mask_check_ <= 0) check_masks();
  call_.body = body;
  call_.context = context;
  call_.width = width_.load(std::memory_order_relaxed);
  int64_t begin = 0;
  double upto = 0;
  for (int i = 0; i < call_.width; ++i) {
    upto += shares_[i];
    int64_t end = i + 1 == call_.width ? tasks : std::llround(upto * static_cast<double>(tasks));
    if (end > tasks) end = tasks;  // shares that are rounded can add up to a little more than 1
    call_.shares[i].next.store(begin, std::memory_order_relaxed);
    call_.shares[i].end = end;
    call_.shares[i].piece = (end - begin + kPieces - 1) / kPieces;
    if (call_.shares[i].piece < 1) call_.shares[i].piece = 1;
    begin = end;
  }
  open_gate();
  take_part(0);
  shut_gate();
}

// Returns the gate of a call after `seen`, or what it is when the pool ends.
uint64_t Pool::wait_for_call(Worker* worker, uint64_t seen, int64_t* watch_ns) {
  const int64_t start_ns = now_ns();
  for (;;) {
    if (worker->index < width_.load(std::memory_order_relaxed) && may_watch_.load(std::memory_order_relaxed)) {
      int64_t waited_ns = 0;
      while (waited_ns < *watch_ns) {
        for (int i = 0; i < kLooksPerClock; ++i) {
          const uint64_t gate = gate_.load(std::memory_order_acquire);
          if (call_number(gate) != seen) {
            // Calls come close together: be sure to still be there for the next. Gaps within a step are uneven (who was
            // done last waits least), so what was learned from a long one is forgotten slowly.
            *watch_ns = within_bounds(std::max(*watch_ns - *watch_ns / 8, 4 * waited_ns));
            return gate;
          }
          relax();
        }
        waited_ns = now_ns() - start_ns;
      }
    }
    worker->asleep.store(1, std::memory_order_seq_cst);
    const uint64_t gate = gate_.load(std::memory_order_seq_cst);
    if (call_number(gate) != seen || ending_.load(std::memory_order_seq_cst)) {
      worker->asleep.store(0, std::memory_order_relaxed);
      return gate;
    }
    sleep_while(&worker->asleep, 1);
    const uint64_t after = gate_.load(std::memory_order_acquire);
    if (call_number(after) != seen || ending_.load(std::memory_order_acquire)) {
      // A gap that one could have watched through is one to watch through the next time. A longer one may be that
      // between two steps, which says little of those within.
      *watch_ns = within_bounds(now_ns() - start_ns < kLongestWatch_ns ? kLongestWatch_ns : *watch_ns / 2);
      return after;
    }
  }
}

void Pool::serve(Worker* worker) {
  uint64_t seen = call_number(gate_.load(std::memory_order_acquire));
  int64_t watch_ns = kLongestWatch_ns;
  while (!ending_.load(std::memory_order_acquire)) {
    uint64_t gate = wait_for_call(worker, seen, &watch_ns);
    seen = call_number(gate);
    while ((gate & kOpen) != 0 && call_number(gate) == seen) {
      if (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      if (worker->index < call_.width) take_part(worker->index);
      const uint64_t left = gate_.fetch_sub(1, std::memory_order_seq_cst) - 1;
      if ((left & (kOpen | kInsideMask)) == 0 && caller_asleep_.exchange(0, std::memory_order_seq_cst) != 0) {
        wake(&caller_asleep_);
      }
      break;
    }
  }
}

void* Pool::work(void* worker) {
  pool().serve(static_cast<Worker*>(worker));
  return nullptr;
}

bool Pool::make_worker() {
  Worker* worker = &workers_[made_ + 1];
  worker->index = made_ + 1;
  worker->asleep.store(0, std::memory_order_relaxed);
  // Signals are the business of the process's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int failed = pthread_create(&worker->thread, nullptr, work, worker);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) return false;
  pthread_setname_np(worker->thread, "mk-pool");
  ++made_;
  return true;
}

// Gives a thread its core, or with -1 all that the process has. False when it cannot have it.
bool Pool::place(pthread_t thread, int core) {
  if (core >= 0 && core < CPU_SETSIZE && CPU_ISSET(core, &mask_)) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (pthread_setaffinity_np(thread, sizeof one, &one) == 0) return true;
  }
  pthread_setaffinity_np(thread, sizeof mask_, &mask_);
  return core < 0;
}

// Watching makes sense only while each thread has a processor of its own: otherwise it keeps another one from working.
void Pool::check_masks() {
  calls_to_mask_check_ = kCallsPerMaskCheck;
  cpu_set_t all;
  CPU_ZERO(&all);
  const int width = width_.load(std::memory_order_relaxed);
  for (int i = 0; i < width; ++i) {
    cpu_set_t mask;
    const pthread_t thread = i == 0 ? pthread_self() : workers_[i].thread;
    if (pthread_getaffinity_np(thread, sizeof mask, &mask) == 0) CPU_OR(&all, &all, &mask);
  }
  may_watch_.store(CPU_COUNT(&all) >= width, std::memory_order_relaxed);
}

int Pool::set(int threads, const int* cores, const float* shares) {
  if (threads < 1 || threads > kMostThreads) return fail("%d threads are not within 1 and %d", threads, kMostThreads);
  float sum = 0;
  for (int i = 0; i < threads; ++i) {
    const float share = shares != nullptr ? shares[i] : 1.0f;
    if (!(share > 0) || !std::isfinite(share)) {
      return fail("share %d is %g, no finite number above 0", i, static_cast<double>(share));
    }
    sum += share;
  }
  if (!std::isfinite(sum)) return fail("the shares add up to no finite number");
  if (inside_run) return fail("a task of the pool cannot change the pool");
  const std::lock_guard<std::mutex> mine(busy_);
  // Read each time, as somebody may have changed it. With more processors than the fixed mask has room for it stays
  // empty: threads are placed nowhere then, and calls still work.
  if (!placed_caller && sched_getaffinity(0, sizeof mask_, &mask_) != 0) CPU_ZERO(&mask_);
  while (made_ < threads - 1) {
    if (!make_worker()) return fail("thread %d of the pool could not be made", made_ + 1);
  }
  int unplaced = 0;
  for (int i = 0; i < threads; ++i) {
    shares_[i] = (shares != nullptr ? shares[i] : 1.0f) / sum;
    const int core = cores != nullptr ? cores[i] : -1;
    if (i == 0 && core < 0 && !placed_caller) continue;
    const bool placed = place(i == 0 ? pthread_self() : workers_[i].thread, core);
    if (!placed) ++unplaced;
    if (i == 0) placed_caller = placed && core >= 0;
  }
  width_.store(threads, std::memory_order_relaxed);
  check_masks();
  return unplaced;
}

int Pool::stop() {
  if (inside_run) return fail("a task of the pool cannot stop the pool");
  const std::lock_guard<std::mutex> mine(busy_);
  ending_.store(true, std::memory_order_seq_cst);
  // Watching threads see a new number and, as the gate is shut, nothing to do.
  gate_.store((call_number(gate_.load(std::memory_order_relaxed)) + 1) << 32, std::memory_order_seq_cst);
  for (int i = 1; i <= made_; ++i) {
    if (workers_[i].asleep.exchange(0, std::memory_order_seq_cst) != 0) wake(&workers_[i].asleep);
    pthread_join(workers_[i].thread, nullptr);
  }
  made_ = 0;
  width_.store(1, std::memory_order_relaxed);
  ending_.store(false, std::memory_order_relaxed);
  return 0;
}

}  // namespace

void run_tasks(int64_t tasks, int64_t task_work, Body body, void* context) {
  if (tasks <= 0) return;
  // Divided rather than multiplied: the product could be beyond 64 bits.
  if (task_work < kWorthSharing && tasks < kWorthSharing / (task_work > 0 ? task_work : 1)) {
    body(context, 0, tasks);
    return;
  }
  pool().run(tasks, body, context);
}

int pool_set(int threads, const int* cores, const float* shares) { return pool().set(threads, cores, shares); }

int pool_threads() { return pool().width(); }

int pool_stop() { return pool().stop(); }

}  // namespace magnitude
