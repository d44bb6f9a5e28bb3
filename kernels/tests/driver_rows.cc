// The driver's commands for what surrounds products: a row at a time, by the path in use.
#include <cstdio>
#include <vector>

#include "dispatch.h"
#include "driver_commands.h"

namespace magnitude {
namespace driver {

int norm(const char* line) {
  long long k;
  float epsilon;
  if (std::sscanf(line, "%*s %lld %f", &k, &epsilon) != 2 || k < 1) return refuse(line);
  const size_t bytes = static_cast<size_t>(k) * sizeof(float);
  Bytes x, gain;
  if (!read(bytes, &x) || !read(bytes, &gain)) return refuse(line);
  std::vector<float> out(static_cast<size_t>(k));
  isa().row_math->norm(floats(x), k, floats(gain), epsilon, out.data());
  return answer(out.data(), bytes);
}

int gate(const char* line) {
  long long n;
  if (std::sscanf(line, "%*s %lld", &n) != 1 || n < 0) return refuse(line);
  const size_t bytes = static_cast<size_t>(n) * sizeof(float);
  Bytes gates, ups;
  if (!read(bytes, &gates) || !read(bytes, &ups)) return refuse(line);
  std::vector<float> y(static_cast<size_t>(n));
  isa().row_math->gate(floats(gates), floats(ups), n, y.data());
  return answer(y.data(), bytes);
}

}  // namespace driver
}  // namespace magnitude
