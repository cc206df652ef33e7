/* The only program of Mooring's inside a tenant's root: pid 1 of a sandbox, or of one owner in it.

   `mooring-init sandbox` reaps children for ever. The sandbox spawner executes it as its last step.

   `mooring-init owner` (enter.c) is started outside by the owner spawner. It joins the sandbox's namespaces, makes a pid
   namespace and a view of /proc of the owner's own, and becomes its pid 1 without executing anything again, so its
   memory never belongs to the tenant's user namespace. From then on it starts programs, signals them and reports their
   ends to the supervisor outside, over one socket. When that socket closes it exits, and the kernel kills the rest.

   It is linked statically, reads no configuration, loads nothing, and holds no descriptor of the machine's files. Only
   the supervisor sends it requests; what it reads of the tenant's are two files that it opens for the supervisor, and
   what the kernel says in /proc. The structures below have their twins in supervisor/init_processes.py. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "init.h"

enum { SPAWN = 1, SIGNAL, SIGNAL_FOREGROUND, LIST, OPEN_ACCOUNTS };
enum { ENDED = 1, HAS_VARIABLE = 2 };
enum { PASSED_MAX = 4, TEXT_MAX = 4096, WORDS_MAX = 16384,
       ENTRIES_IN_PACKET = 1024, START_MILLISECONDS = 20000, ENVIRONMENT_MAX = 2 << 20 };

struct request { uint32_t id, operation; int32_t first, second, third; char text[TEXT_MAX]; };
struct response { uint32_t id; int32_t error, value; uint32_t more; };
struct entry { int32_t pid, parent, session; uint32_t flags; };
struct plan { uint32_t uid, gid, group_count, argument_count, variable_count; };

int report_to = -1;
struct rlimit program_files;

void fail(const char *what) {
    char text[256];
    int length = snprintf(text, sizeof text, "problem %s: %s", what, strerror(errno));
    if (report_to >= 0)
        (void)!send(report_to, text, length, MSG_NOSIGNAL);
    _exit(1);
}

void check(int result, const char *what) {
    if (result < 0)
        fail(what);
}

char *read_whole(int descriptor, size_t limit, size_t *size) {
    struct stat status;
    if (fstat(descriptor, &status) < 0 || status.st_size < 0 || (size_t)status.st_size > limit)
        return NULL;
    char *content = malloc(status.st_size + 1);
    size_t done = 0;
    while (content && done < (size_t)status.st_size) {
        ssize_t part = pread(descriptor, content + done, status.st_size - done, done);
        if (part <= 0) {
            free(content);
            return NULL;
        }
        done += part;
    }
    if (content)
        content[done] = 0;
    *size = done;
    return content;
}

/* --- starting a program --- */

struct program { struct plan plan; gid_t *groups; char *directory, **arguments, **variables; };

/* Splits a plan into its words; -1 unless it is exactly as long as it says. */
static int parse_plan(char *content, size_t size, struct program *program) {
    if (size < sizeof program->plan)
        return -1;
    memcpy(&program->plan, content, sizeof program->plan);
    struct plan *plan = &program->plan;
    if (plan->group_count > WORDS_MAX || plan->argument_count > WORDS_MAX || plan->variable_count > WORDS_MAX)
        return -1;
    size_t words = sizeof *plan + plan->group_count * sizeof(gid_t);
    if (words >= size || content[size - 1] || !plan->argument_count)
        return -1;
    program->groups = (gid_t *)(content + sizeof *plan);
    size_t count = 1 + plan->argument_count + plan->variable_count;
    char **found = calloc(count + 2, sizeof *found);
    if (!found)
        return -1;
    char *word = content + words, *end = content + size;
    program->directory = word;
    program->arguments = found;
    program->variables = found + plan->argument_count + 1;
    for (size_t index = 0; index < count; index++) {
        if (word >= end) {
            free(found);
            return -1;
        }
        if (index)
            found[index - 1 + (index > plan->argument_count)] = word;
        word += strlen(word) + 1;
    }
    if (word == end)
        return 0;
    free(found);
    return -1;
}

/* Executes the program, looked up along its own PATH; returns only with an error. */
static int execute(struct program *program) {
    char *name = program->arguments[0];
    if (strchr(name, '/')) {
        execve(name, program->arguments, program->variables);
        return errno;
    }
    const char *path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    for (char **variable = program->variables; *variable; variable++)
        if (!strncmp(*variable, "PATH=", 5))
            path = *variable + 5;
    int problem = ENOENT;
    static char place[8192];
    for (const char *part = path; part; part = strchr(part, ':') ? strchr(part, ':') + 1 : NULL) {
        int length = strchrnul(part, ':') - part;
        if (snprintf(place, sizeof place, "%.*s/%s", length, length ? part : ".", name) >= (int)sizeof place)
            continue;
        execve(place, program->arguments, program->variables);
        if (errno != ENOENT && errno != ENOTDIR)
            problem = errno;
    }
    return problem;
}

static int prepare(struct program *program, const int streams[3], int has_terminal, int *errors) {
    setsid();
    if (has_terminal && ioctl(streams[0], TIOCSCTTY, 0) < 0)
        return errno;
    int high[4] = {streams[0], streams[1], streams[2], *errors};
    for (int index = 0; index < 4; index++)
        if ((high[index] = fcntl(high[index], F_DUPFD_CLOEXEC, 10)) < 0)
            return errno;
    *errors = high[3];
    for (int target = 0; target < 3; target++)
        if (dup2(high[target], target) < 0)
            return errno;
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
    if (program_files.rlim_max && setrlimit(RLIMIT_NOFILE, &program_files))
        return errno;
    struct plan *plan = &program->plan;
    if (setgroups(plan->group_count, program->groups) || setresgid(plan->gid, plan->gid, plan->gid) ||
        setresuid(plan->uid, plan->uid, plan->uid) || chdir(program->directory) ||
        close_range(3, ~0U, CLOSE_RANGE_CLOEXEC))
        return errno;
    return 0;
}

static int started_within_time(int errors, int *problem) {
    struct pollfd wait = {errors, POLLIN, 0};
    int ready;
    while ((ready = poll(&wait, 1, START_MILLISECONDS)) < 0 && errno == EINTR)
        ;
    if (!ready) {
        *problem = ETIMEDOUT;
        return 0;
    }
    return read(errors, problem, sizeof *problem) <= 0; /* nothing written: exec closed it */
}

static pid_t *children; /* what was started here; the ends of orphans are nobody's business */
static size_t child_count, child_room;

static int start(struct program *program, const int streams[3], int has_terminal, pid_t *pid) {
    if (child_count == child_room) {
        size_t room = child_room ? 2 * child_room : 64;
        pid_t *more = realloc(children, room * sizeof *more);
        if (!more)
            return ENOMEM;
        children = more;
        child_room = room;
    }
    int errors[2];
    if (pipe2(errors, O_CLOEXEC))
        return errno;
    *pid = fork();
    if (!*pid) {
        int problem = prepare(program, streams, has_terminal, &errors[1]);
        if (!problem)
            problem = execute(program);
        (void)!write(errors[1], &problem, sizeof problem);
        _exit(127);
    }
    int problem = *pid < 0 ? errno : 0;
    close(errors[1]);
    if (!problem && started_within_time(errors[0], &problem))
        children[child_count++] = *pid;
    else if (*pid > 0) {
        kill(*pid, SIGKILL);
        waitpid(*pid, NULL, 0);
    }
    close(errors[0]);
    return problem;
}

/* A terminal of the sandbox's own devpts, by a name in a file system in which nobody can make files. */
static int open_terminal(int rows, int columns, int *terminal, int *side) {
    *terminal = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*terminal < 0)
        return errno;
    int unlocked = 0;
    struct winsize size = {rows, columns, 0, 0};
    if (ioctl(*terminal, TIOCSPTLCK, &unlocked) || ioctl(*terminal, TIOCSWINSZ, &size) ||
        (*side = ioctl(*terminal, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0) {
        int problem = errno;
        close(*terminal);
        return problem;
    }
    return 0;
}

/* --- requests --- */

static void respond(int supervisor, struct response response, const void *more, size_t size, int descriptor) {
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    struct iovec parts[2] = {{&response, sizeof response}, {(void *)more, size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = size ? 2 : 1};
    if (descriptor >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    while (sendmsg(supervisor, &message, MSG_NOSIGNAL) < 0) {
        if (errno == EINTR)
            continue;
        if (!message.msg_control)
            _exit(0); /* the supervisor is gone, and so is everything that it supervises */
        /* Perhaps the kernel only refuses to send the descriptor, as users may have so many under way: say so without it. */
        response.error = errno;
        message.msg_control = NULL;
        message.msg_controllen = 0;
    }
}

static void close_passed(int *passed, int count) {
    for (int index = 0; index < count; index++) {
        if (passed[index] >= 0)
            close(passed[index]);
        passed[index] = -1;
    }
}

static void spawn(int supervisor, struct request *request, int *passed, int count) {
    int has_terminal = request->first, terminal = -1, side = -1, problem = EINVAL;
    size_t size;
    pid_t pid = -1;
    struct program program = {0};
    char *content = count == (has_terminal ? 1 : 4) ? read_whole(passed[0], PLAN_MAX, &size) : NULL;
    if (content && !parse_plan(content, size, &program)) {
        problem = has_terminal ? open_terminal(request->second, request->third, &terminal, &side) : 0;
        int streams[3] = {side, side, side};
        if (!has_terminal)
            memcpy(streams, passed + 1, sizeof streams);
        if (!problem)
            problem = start(&program, streams, has_terminal, &pid);
        free(program.arguments);
    }
    free(content);
    if (side >= 0)
        close(side);
    close_passed(passed, count); /* before the supervisor knows that it was done */
    respond(supervisor, (struct response){request->id, problem, pid, 0}, NULL, 0, problem ? -1 : terminal);
    if (terminal >= 0)
        close(terminal);
}

/* Whether a process was started with this assignment in its environment, as far as that is visible. */
static int has_variable(int process, const char *assignment) {
    static char content[ENVIRONMENT_MAX];
    int file = openat(process, "environ", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    size_t size = 0;
    for (ssize_t part; size < sizeof content - 1 && (part = read(file, content + size, sizeof content - 1 - size)) > 0;)
        size += part;
    close(file);
    content[size] = 0;
    for (char *variable = content; variable < content + size; variable += strlen(variable) + 1)
        if (!strcmp(variable, assignment))
            return 1;
    return 0;
}

/* One process as /proc shows it; 0 if it is gone. */
static int look_at(int proc, const char *name, const char *assignment, struct entry *entry) {
    int process = openat(proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int file = process < 0 ? -1 : openat(process, "stat", O_RDONLY | O_CLOEXEC);
    char text[1024];
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    char *end = NULL, state;
    if (size > 0) {
        text[size] = 0;
        end = strrchr(text, ')'); /* a program chooses its name, which stands before */
    }
    int found = end && sscanf(end + 1, " %c %d %*d %d", &state, &entry->parent, &entry->session) == 3;
    if (found) {
        entry->pid = atoi(name);
        entry->flags = state == 'Z' || state == 'X' ? ENDED : 0;
        if (*assignment && !entry->flags && has_variable(process, assignment))
            entry->flags |= HAS_VARIABLE;
    }
    if (file >= 0)
        close(file);
    if (process >= 0)
        close(process);
    return found;
}

static void list(int supervisor, struct request *request) {
    static struct entry entries[ENTRIES_IN_PACKET];
    int count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *name; proc && (name = readdir(proc));) {
        if (name->d_name[0] < '1' || name->d_name[0] > '9' || !strcmp(name->d_name, "1"))
            continue;
        count += look_at(dirfd(proc), name->d_name, request->text, &entries[count]);
        if (count == ENTRIES_IN_PACKET) {
            respond(supervisor, (struct response){request->id, 0, count, 1}, entries, sizeof entries, -1);
            count = 0;
        }
    }
    int problem = proc ? 0 : errno;
    if (proc)
        closedir(proc);
    respond(supervisor, (struct response){request->id, problem, count, 0}, entries, count * sizeof *entries, -1);
}

/* The tenant controls these files: a link is not followed, and what is not a regular file is not opened. */
static void open_accounts(int supervisor, struct request *request) {
    const char *path = request->first ? "/etc/group" : "/etc/passwd";
    struct open_how how = {.flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    struct stat status;
    int file = syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    int problem = file < 0 ? errno : fstat(file, &status) ? errno : S_ISREG(status.st_mode) ? 0 : EINVAL;
    respond(supervisor, (struct response){request->id, problem, 0, 0}, NULL, 0, problem ? -1 : file);
    if (file >= 0)
        close(file);
}

static void answer(int supervisor, struct request *request, int *passed, int count) {
    int problem = EINVAL;
    if (request->operation == SPAWN)
        return spawn(supervisor, request, passed, count);
    if (request->operation == LIST)
        return list(supervisor, request);
    if (request->operation == OPEN_ACCOUNTS)
        return open_accounts(supervisor, request);
    if (request->operation == SIGNAL)
        problem = request->first == 0 || request->first == 1 ? EINVAL : kill(request->first, request->second) ? errno : 0;
    if (request->operation == SIGNAL_FOREGROUND && count == 1) {
        pid_t group = -1;
        int found = ioctl(passed[0], TIOCGPGRP, &group);
        problem = found ? errno : group <= 1 ? ESRCH : kill(-group, request->second) ? errno : 0;
    }
    respond(supervisor, (struct response){request->id, problem, 0, 0}, NULL, 0, -1);
}

static void receive(int supervisor) {
    struct request request = {0};
    int passed[PASSED_MAX], count = 0;
    union { char bytes[CMSG_SPACE(sizeof passed)]; struct cmsghdr align; } control;
    struct iovec part = {&request, sizeof request - 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(supervisor, &message, MSG_CMSG_CLOEXEC);
    if (size < 0 && errno == EINTR)
        return;
    if (size <= 0)
        _exit(0);
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header))
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
            count = (header->cmsg_len - CMSG_LEN(0)) / sizeof *passed;
            memcpy(passed, CMSG_DATA(header), count * sizeof *passed);
        }
    if ((size_t)size >= offsetof(struct request, text) && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        answer(supervisor, &request, passed, count);
    else
        respond(supervisor, (struct response){request.id, EMSGSIZE, 0, 0}, NULL, 0, -1);
    close_passed(passed, count);
}

static void reap(int supervisor) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (size_t index = 0; index < child_count; index++)
            if (children[index] == pid) {
                children[index] = children[--child_count];
                respond(supervisor, (struct response){0, 0, pid, status}, NULL, 0, -1);
                break;
            }
}

static int watch_children(void) {
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    check(sigprocmask(SIG_BLOCK, &ended, NULL), "block a signal");
    int signals = signalfd(-1, &ended, SFD_CLOEXEC | SFD_NONBLOCK);
    check(signals, "watch children");
    return signals;
}

void serve(int supervisor) {
    int signals = watch_children();
    struct pollfd wait[2] = {{supervisor, POLLIN, 0}, {signals, POLLIN, 0}};
    for (;;) {
        if (poll(wait, 2, -1) < 0 && errno != EINTR)
            _exit(1);
        struct signalfd_siginfo information;
        while (read(signals, &information, sizeof information) > 0)
            ;
        reap(supervisor);
        if (wait[0].revents)
            receive(supervisor);
    }
}

__attribute__((noreturn)) static void run_sandbox(void) {
    check(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "hide from tracing");
    prctl(PR_SET_NAME, "mooring-init", 0, 0, 0);
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ended, NULL);
    for (;;) {
        int number;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        sigwait(&ended, &number);
    }
}

int main(int count, char **arguments) {
    if (count == 2 && !strcmp(arguments[1], "owner"))
        return run_owner();
    if (count == 2 && !strcmp(arguments[1], "sandbox"))
        run_sandbox();
    fprintf(stderr, "mooring-init: started by the node agent, as `mooring-init sandbox` or `mooring-init owner`\n");
    return 2;
}
