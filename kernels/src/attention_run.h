// Appends and attention on the pool, with the instruction set in use: from a call that nobody has checked to its
// result.
#ifndef MAGNITUDE_KERNELS_ATTENTION_RUN_H_
#define MAGNITUDE_KERNELS_ATTENTION_RUN_H_

#include "attention.h"

namespace magnitude {

// -1, and an error, before anything is written.
int run_append(const AppendCall& call);

// `threads` of the call is set here, from the pool's width.
int run_attention(AttentionCall call);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_ATTENTION_RUN_H_
