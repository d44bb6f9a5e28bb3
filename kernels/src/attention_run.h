// Appends and attention on the pool, with the instruction set in use: from a call that nobody has checked to its
// result.
#ifndef MAGNITUDE_KERNELS_ATTENTION_RUN_H_
#define MAGNITUDE_KERNELS_ATTENTION_RUN_H_

#include "attention.h"
#include "rotation.h"

namespace magnitude {

// -1, and an error, before anything is written.
int run_append(const AppendCall& call);

// `threads` of the call is set here, from the pool's width.
int run_attention(AttentionCall call);

// Appends rows, if `appending` is not null, and attends with them; queries and new keys are turned before where
// `rotation` has tables. The two calls are of one cache and the same rows. -1, and an error, before anything is written.
int run_step(const Rotation& rotation, const AppendCall* appending, AttentionCall attending);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_ATTENTION_RUN_H_
