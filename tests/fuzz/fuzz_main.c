/* Drives a libFuzzer entry where libFuzzer cannot be had: seeds first, then seeds mutated at random, for a time.
 *
 * Usage: program SECONDS FIRST_NUMBER SEED_FILE... The same number gives the same inputs. A failing input is left in
 * the file "crash" of the working directory; ASAN_OPTIONS must say abort_on_error=1.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_BYTES = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

static uint64_t state;
static uint8_t input[MAX_BYTES];
static size_t n_input;

static uint64_t chance(uint64_t below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (state >> 20) % below;
}

static void load(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    perror(path);
    exit(2);
  }
  n_input = fread(input, 1, sizeof input, file);
  fclose(file);
}

static void mutate(void) {
  static const uint8_t values[] = {0, 1, 0x7F, 0x80, 0xFF, 0x7C, 0xFC, 0x3C};
  for (uint64_t i = 1 + chance(8); i > 0 && n_input; i--) {
    const size_t at = chance(n_input < 8 || chance(2) ? n_input : 8); /* often the numbers at the beginning */
    switch (chance(4)) {
      case 0: input[at] ^= (uint8_t)(1u << chance(8)); break;
      case 1: input[at] = values[chance(sizeof values)]; break;
      case 2: n_input = 4 + chance(n_input); break;
      default:
        for (size_t j = at; j < n_input && j < at + 32; j++) input[j] = (uint8_t)chance(256);
    }
    if (n_input > MAX_BYTES) n_input = MAX_BYTES;
  }
}

/* Leaves the input where it can be looked at; then the sanitizer's abort goes its way. */
static void keep(int number) {
  FILE *file = fopen("crash", "wb");
  if (file) {
    fwrite(input, 1, n_input, file);
    fclose(file);
  }
  signal(number, SIG_DFL);
  raise(number);
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  const time_t end = time(NULL) + atoi(argv[1]);
  state = strtoull(argv[2], NULL, 10) * 2 + 88172645463325253ull;
  signal(SIGABRT, keep);
  long n_runs = 0;
  for (int i = 3; i < argc; i++, n_runs++) {
    load(argv[i]);
    LLVMFuzzerTestOneInput(input, n_input);
  }
  for (; time(NULL) < end; n_runs++) {
    load(argv[3 + chance((uint64_t)argc - 3)]);
    mutate();
    LLVMFuzzerTestOneInput(input, n_input);
  }
  printf("%ld runs\n", n_runs);
  return 0;
}
