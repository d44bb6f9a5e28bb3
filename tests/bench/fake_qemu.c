/* Loads the plugin as QEMU does, shows it one block of code (standard input), runs the block three times, and lets the
 * program make mark 7, and after that another call.
 *
 *   fake_qemu PLUGIN out=FILE
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef void (*Translated)(uint64_t, void*);
typedef void (*Executed)(unsigned, void*);
typedef void (*Called)(uint64_t, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                       uint64_t);

static uint32_t code[256];
static size_t length;
static Translated translated;
static Executed executed;
static void* executed_data;
static Called called;

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, Translated callback) {
  (void)id;
  translated = callback;
}
void qemu_plugin_register_vcpu_tb_exec_cb(void* tb, Executed callback, int registers, void* data) {
  (void)tb, (void)registers;
  executed = callback;
  executed_data = data;
}
void qemu_plugin_register_vcpu_syscall_cb(uint64_t id, Called callback) {
  (void)id;
  called = callback;
}
size_t qemu_plugin_tb_n_insns(const void* tb) { return (void)tb, length; }
void* qemu_plugin_tb_get_insn(const void* tb, size_t index) { return (void)tb, &code[index]; }
const void* qemu_plugin_insn_data(const void* instruction) { return instruction; }

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* plugin = dlopen(argv[1], RTLD_NOW);
  int (*install)(uint64_t, const void*, int, char**) = NULL;
  if (plugin != NULL) *(void**)&install = dlsym(plugin, "qemu_plugin_install");
  if (install == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  length = fread(code, sizeof *code, sizeof code / sizeof *code, stdin);
  if (install(1, NULL, 1, argv + 2) != 0) return 1;
  translated(1, code);
  for (int i = 0; i < 3; ++i) executed(0, executed_data);
  called(1, 0, 156, 0x6d6b07, 0, 0, 0, 0, 0, 0, 0); /* getsid of a process that cannot be */
  called(1, 0, 156, 1, 0, 0, 0, 0, 0, 0, 0);        /* of one that can */
  called(1, 0, 172, 0x6d6b08, 0, 0, 0, 0, 0, 0, 0); /* another call */
  return 0;
}
