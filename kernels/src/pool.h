// The threads that operators compute on.
//
// Threads are made once and stay; how many of them take part, on which cores and with which shares can change between
// any two calls. They watch for the next call for a moment (about as long as it took to come before, at most
// kLongestWatch_ns), then sleep: a pool without work costs no processor time.
//
// The caller is thread 0. A second caller at the same time, or a body that runs tasks itself, computes alone instead
// of waiting, so that nothing can lock up.
#ifndef MAGNITUDE_KERNELS_POOL_H_
#define MAGNITUDE_KERNELS_POOL_H_

#include <stdint.h>

namespace magnitude {

// Computes tasks [begin, end). Called from several threads at once; must not throw.
using Body = void (*)(void* context, int64_t begin, int64_t end);

// Runs all `tasks` and returns when they are done. `task_work` is about the number of multiplications in one task:
// what is too small to share is computed by the caller alone.
void run_tasks(int64_t tasks, int64_t task_work, Body body, void* context);

// What mk_pool_set(), mk_pool_threads() and mk_pool_stop() say.
int pool_set(int threads, const int* cores, const float* shares);
int pool_threads();
int pool_stop();

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_POOL_H_
