// Runs what a test asks for through the C interface, in a process of its own: under an emulator, under a sanitizer, or
// with weights and rows that no library in the test's own process should see.
//
// Standard input is a sequence of commands, a line of words each, some followed by that many raw bytes:
//   isas                                the names of the instruction sets
//   isa NAME                            use it
//   pool THREADS                        the width of the pool
//   product KIND N K M VALUES           then VALUES bytes of values, float32 scales, minima for kind 2, rows x
//   packed N K M BYTES                  then BYTES bytes of packed weights, rows x
//   attend BYTES ROWS HEADS KV_HEADS HEAD_SIZE WINDOW   then queries, keys and values of positions 0…ROWS − 1 of a slot
//   norm K EPSILON                      then x and gains, float32
//   gate N                              then gates and ups, float32
//   runs CALLERS TIMES TASKS            CALLERS threads run TASKS tasks TIMES times each; answers the sum of all tasks
// To each command standard output gets a line "ok BYTES" with that many raw bytes after it, or "error TEXT".
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "driver_commands.h"
#include "magnitude_kernels.h"

namespace magnitude {
namespace driver {
namespace {

int isas(const char*) {
  std::string names;
  for (int i = 0; i < mk_isa_count(); ++i) names += std::string(i ? " " : "") + mk_isa_name(i);
  return answer(names.data(), names.size());
}

int isa(const char* line) {
  char name[32];
  if (std::sscanf(line, "%*s %31s", name) != 1) return refuse(line);
  return mk_isa_use(name) == 0 ? answer(nullptr, 0) : answer_error();
}

int pool(const char* line) {
  int threads;
  if (std::sscanf(line, "%*s %d", &threads) != 1) return refuse(line);
  return mk_pool_set(threads, nullptr, nullptr) == 0 ? answer(nullptr, 0) : answer_error();
}

int multiply(const Bytes& packed, const Bytes& x, long long n, long long k, long long m) {
  // Exactly as large as the result: a sanitizer sees a byte written beyond.
  std::vector<float> y(static_cast<size_t>(m * n));
  if (mk_product(packed.data(), packed.size(), floats(x), m, k, y.data(), n) != 0) return answer_error();
  return answer(y.data(), y.size() * sizeof(float));
}

int product(const char* line) {
  int kind;
  long long n, k, m, size;
  if (std::sscanf(line, "%*s %d %lld %lld %lld %lld", &kind, &n, &k, &m, &size) != 5) return refuse(line);
  const size_t numbers = static_cast<size_t>(n * ((k + 31) / 32)) * sizeof(float);
  Bytes values, scales, minima, x;
  if (!read(size, &values) || !read(numbers, &scales)) return refuse(line);
  if (kind == MK_INT4_MINIMUM && !read(numbers, &minima)) return refuse(line);
  if (!read(static_cast<size_t>(m * k) * sizeof(float), &x)) return refuse(line);
  const int64_t bytes = mk_pack_bytes(kind, n, k);
  if (bytes < 0) return answer_error();
  Bytes packed(static_cast<size_t>(bytes));
  if (mk_pack(kind, n, k, values.data(), values.size(), floats(scales), minima.empty() ? nullptr : floats(minima),
              packed.data(), packed.size()) != 0) {
    return answer_error();
  }
  return multiply(packed, x, n, k, m);
}

int packed(const char* line) {
  long long n, k, m, size;
  if (std::sscanf(line, "%*s %lld %lld %lld %lld", &n, &k, &m, &size) != 4) return refuse(line);
  Bytes weights, x;
  if (!read(size, &weights) || !read(static_cast<size_t>(m * k) * sizeof(float), &x)) return refuse(line);
  return multiply(weights, x, n, k, m);
}

struct Command {
  const char* word;
  int (*run)(const char* line);
};

const Command kCommands[] = {
    {"isas", isas},     {"isa", isa},       {"pool", pool}, {"product", product},
    {"packed", packed}, {"attend", attend}, {"runs", runs}, {"norm", norm},       {"gate", gate},
};

int serve() {
  char line[512];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    line[std::strcspn(line, "\n")] = 0;
    const size_t word = std::strcspn(line, " ");
    bool known = false;
    for (const Command& command : kCommands) {
      if (std::strlen(command.word) != word || std::strncmp(command.word, line, word) != 0) continue;
      known = true;
      if (command.run(line) != 0) return 1;
    }
    if (!known) return refuse(line);
  }
  mk_pool_stop();
  return 0;
}

}  // namespace
}  // namespace driver
}  // namespace magnitude

int main() { return magnitude::driver::serve(); }
