// The driver's command for the pool itself: many callers at once.
#include <cstdint>
#include <thread>
#include <vector>

#include "driver_commands.h"
#include "pool.h"

namespace magnitude {
namespace driver {
namespace {

// Each task adds its number once. Slots are plain memory: a task that two threads compute, or a run that returns
// before its last task, is a data race and a wrong sum.
struct Sums {
  std::vector<int64_t> slots;
};

void add_tasks(void* context, int64_t begin, int64_t end) {
  Sums& sums = *static_cast<Sums*>(context);
  for (int64_t task = begin; task < end; ++task) sums.slots[static_cast<size_t>(task)] += task;
}

}  // namespace

int runs(const char* line) {
  int callers, times;
  long long tasks;
  if (std::sscanf(line, "%*s %d %d %lld", &callers, &times, &tasks) != 3) return refuse(line);
  std::vector<Sums> all(static_cast<size_t>(callers));
  std::vector<std::thread> threads;
  for (Sums& sums : all) {
    sums.slots.resize(static_cast<size_t>(tasks));
    threads.emplace_back([&sums, times, tasks] {
      for (int i = 0; i < times; ++i) run_tasks(tasks, INT64_C(1) << 30, add_tasks, &sums);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t total = 0;
  for (const Sums& sums : all) {
    for (int64_t slot : sums.slots) total += slot;
  }
  return answer(&total, sizeof total);
}

}  // namespace driver
}  // namespace magnitude
