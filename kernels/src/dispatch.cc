#include "dispatch.h"

#include <atomic>
#include <cstring>

#include "error.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace magnitude {
namespace {

constexpr int kMostIsas = 8;

#if defined(__aarch64__)
// Bits of the kernel's report (asm/hwcap.h), named here because older headers lack the second.
constexpr unsigned long kHwcapDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
constexpr unsigned long kHwcap2I8mm = 1ul << 13;       // HWCAP2_I8MM
#endif

struct Table {
  Isa isas[kMostIsas];
  int count = 0;

  void add(const char* name, RoundRow round_row, ComputePart compute_part, const AttentionPath* attention,
           const RowMath& row_math) {
    isas[count++] = Isa{name, round_row, compute_part, attention, &row_math};
  }

  Table() {
    add("reference", round_row_reference, product_reference, attention_reference(), kRowMathReference);
#if defined(__x86_64__)
    // libgcc asks CPUID, and the system whether it saves these registers.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
      add("avx2", round_row_avx2, product_avx2, attention_avx2(), kRowMathAvx2);
#if defined(MAGNITUDE_HAS_AVXVNNI)
      if (has_avxvnni()) add("avxvnni", round_row_avx2, product_avxvnni, attention_avx2(), kRowMathAvx2);
#endif
      if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl")) {
        add("avx512vnni", round_row_avx2, product_avx512vnni, attention_avx2(), kRowMathAvx2);
      }
    }
#elif defined(__aarch64__) && defined(MAGNITUDE_NEON)
    add("neon", round_row_neon, product_neon, attention_neon(), kRowMathNeon);
    if (getauxval(AT_HWCAP) & kHwcapDotProduct) {
      add("dotprod", round_row_neon, product_dotprod, attention_dotprod(), kRowMathNeon);
      if (getauxval(AT_HWCAP2) & kHwcap2I8mm) {
        add("i8mm", round_row_neon, product_i8mm, attention_dotprod(), kRowMathNeon);
      }
    }
#endif
  }

#if defined(__x86_64__)
  // CPUID leaf 7, subleaf 1, EAX bit 4: older compilers have no name for it.
  static bool has_avxvnni() {
    unsigned eax = 7, ebx, ecx = 1, edx;
    __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    return (eax >> 4) & 1;
  }
#endif
};

const Table& table() {
  static const Table made;
  return made;
}

std::atomic<const Isa*> chosen{nullptr};

}  // namespace

int isa_count() { return table().count; }

const Isa* isa_at(int index) { return index >= 0 && index < table().count ? &table().isas[index] : nullptr; }

const Isa& isa() {
  const Isa* used = chosen.load(std::memory_order_acquire);
  return used != nullptr ? *used : table().isas[table().count - 1];
}

int isa_use(const char* name) {
  if (name == nullptr) {
    chosen.store(nullptr, std::memory_order_release);
    return 0;
  }
  for (int i = 0; i < table().count; ++i) {
    if (std::strcmp(table().isas[i].name, name) == 0) {
      chosen.store(&table().isas[i], std::memory_order_release);
      return 0;
    }
  }
  return fail("this processor or this build has no instruction set \"%s\"", name);
}

}  // namespace magnitude
