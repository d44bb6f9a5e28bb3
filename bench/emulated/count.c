/* A plugin for QEMU's user mode that counts the instructions of an aarch64 program, by kind.
 *
 *   cc -shared -fPIC -O2 -o count.so count.c
 *   qemu-aarch64 -plugin ./count.so,out=FILE PROGRAM
 *
 * The program says where it wants to know: it asks for the session of process MARK + n, which does not exist. FILE then
 * gets a line of n and how many instructions of each kind all of its threads have executed so far.
 *
 * QEMU's header is in no Debian package, so that what is used of version 1 of its plugin interface (QEMU 4.2 to 8.2)
 * is declared here.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
typedef struct qemu_info_t qemu_info_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { NO_REGISTERS = 0 }; /* a callback neither reads nor writes any */

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, void (*translated)(qemu_plugin_id_t, struct qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb* tb, void (*executed)(unsigned, void*), int registers, void* data);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t id, void (*called)(qemu_plugin_id_t, unsigned, int64_t, uint64_t,
                                          uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* tb);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb* tb, size_t index);
const void* qemu_plugin_insn_data(const struct qemu_plugin_insn* instruction);

#define EXPORT __attribute__((visibility("default")))

EXPORT int qemu_plugin_version = 1;

/* Above the largest id that Linux gives a process (2^22). */
#define MARK 0x6d6b00
#define MARKS 0x100
#define GETSID 156 /* aarch64's number */

enum Kind { ALL, MEMORY, VECTOR, DOT, MATRIX, KINDS };

typedef struct Counts {
  uint64_t of[KINDS];
} Counts;

static Counts executed;
static FILE* out;

/* Encodings: Arm Architecture Reference Manual for A-profile, C4.1, "A64 instruction set encoding". */
static int is(uint32_t code, uint32_t mask, uint32_t value) { return (code & mask) == value; }

static void classify(uint32_t code, Counts* counts) {
  counts->of[ALL]++;
  counts->of[MEMORY] += is(code, 0x0a000000, 0x08000000); /* loads, stores, prefetches */
  counts->of[VECTOR] += is(code, 0x0e000000, 0x0e000000); /* vectors and scalar floats */
  counts->of[DOT] += is(code, 0x9fe0f400, 0x0e809400)     /* SDOT, UDOT, USDOT by vector */
                     || is(code, 0x9fc0f400, 0x0f80e000)  /* SDOT, UDOT by element */
                     || is(code, 0xbf40f400, 0x0f00f000); /* USDOT, SUDOT by element */
  counts->of[MATRIX] += is(code, 0xdfe0f400, 0x4e80a400); /* SMMLA, UMMLA, USMMLA */
}

static void on_executed(unsigned cpu, void* data) {
  const Counts* block = data;
  (void)cpu;
  for (int kind = 0; kind < KINDS; ++kind) __atomic_fetch_add(&executed.of[kind], block->of[kind], __ATOMIC_RELAXED);
}

static void on_translated(qemu_plugin_id_t id, struct qemu_plugin_tb* tb) {
  (void)id;
  /* Kept as long as QEMU can run the block, which it does not tell: to the end. */
  Counts* block = calloc(1, sizeof *block);
  if (block == NULL) abort();
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); ++i) {
    uint32_t code;
    memcpy(&code, qemu_plugin_insn_data(qemu_plugin_tb_get_insn(tb, i)), sizeof code);
    classify(code, block);
  }
  qemu_plugin_register_vcpu_tb_exec_cb(tb, on_executed, NO_REGISTERS, block);
}

static void on_called(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t pid, uint64_t b, uint64_t c, uint64_t d,
                      uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
  (void)id, (void)cpu, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  if (number != GETSID || pid < MARK || pid >= MARK + MARKS) return;
  fprintf(out, "%" PRIu64, pid - MARK);
  for (int kind = 0; kind < KINDS; ++kind) fprintf(out, " %" PRIu64, executed.of[kind]);
  fprintf(out, "\n");
  fflush(out);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t* info, int argc, char** argv) {
  (void)info;
  if (argc != 1 || strncmp(argv[0], "out=", 4) != 0 || (out = fopen(argv[0] + 4, "w")) == NULL) return -1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translated);
  qemu_plugin_register_vcpu_syscall_cb(id, on_called);
  return 0;
}
