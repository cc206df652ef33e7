/* What the two halves of `mooring-init` share. */

#ifndef MOORING_INIT_H
#define MOORING_INIT_H

#include <stddef.h>
#include <sys/resource.h>

enum { PLAN_MAX = 4 << 20 };

extern int report_to; /* where problems are reported until the init is ready */
extern struct rlimit program_files; /* how many files a program may have open; the init itself may have more */

void fail(const char *what); /* reports the problem with its errno, and exits */
void check(int result, const char *what);
char *read_whole(int descriptor, size_t limit, size_t *size);

int run_owner(void); /* enter.c */
void serve(int supervisor) __attribute__((noreturn)); /* init.c */

#endif
