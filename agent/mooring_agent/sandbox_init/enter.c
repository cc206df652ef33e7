/* Entering a sandbox as the machine's root and becoming the pid 1 of one of its owners: see init.c. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "init.h"

/* Descriptors that the owner spawner passes, in this order from 3 on. */
enum { SPAWNER = 3, SUPERVISOR, MACHINE_PROC, NOTHING, SETTINGS, FILTER, FIRST_NAMESPACE, USER_NAMESPACE = FIRST_NAMESPACE + 6 };

enum { PATHS_MAX = 64, LIMITS_MAX = 16 };

static struct {
    int has_user_namespace;
    unsigned long long kept;
    int last_capability;
    char *hidden[PATHS_MAX], *read_only[PATHS_MAX];
    int hidden_count, read_only_count, limit_count;
    char *profile;
    struct { int resource; unsigned long value; } limits[LIMITS_MAX];
} settings;

static void read_settings(void) {
    size_t size;
    char *rest, *text = read_whole(SETTINGS, PLAN_MAX, &size);
    if (!text)
        fail("read the settings");
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, ' ');
        if (!value)
            continue;
        *value++ = 0;
        if (!strcmp(line, "user"))
            settings.has_user_namespace = atoi(value);
        else if (!strcmp(line, "keep"))
            settings.kept = strtoull(value, NULL, 10);
        else if (!strcmp(line, "last"))
            settings.last_capability = atoi(value);
        else if (!strcmp(line, "apparmor"))
            settings.profile = value;
        else if (!strcmp(line, "hide") && settings.hidden_count < PATHS_MAX)
            settings.hidden[settings.hidden_count++] = value;
        else if (!strcmp(line, "readonly") && settings.read_only_count < PATHS_MAX)
            settings.read_only[settings.read_only_count++] = value;
        else if (!strcmp(line, "limit") && settings.limit_count < LIMITS_MAX) {
            char *end;
            settings.limits[settings.limit_count].resource = strtol(value, &end, 10);
            settings.limits[settings.limit_count++].value = strtoul(end, NULL, 10);
        } else {
            errno = EINVAL;
            fail(line);
        }
    }
}

/* --- entering the sandbox, still as the machine's root --- */

static void wait_for_go(int channel) {
    char word[16];
    if (recv(channel, word, sizeof word, 0) != 2 || memcmp(word, "go", 2))
        _exit(1); /* the process that started this is gone */
}

static void send_word(int channel, const char *word) {
    if (send(channel, word, strlen(word), MSG_NOSIGNAL) < 0)
        _exit(1);
}

/* Waits for this word, passes a problem on, and returns the sender's pid as the machine sees it. */
static pid_t receive_word(int channel, const char *word) {
    char text[256] = {0};
    union { char bytes[CMSG_SPACE(sizeof(struct ucred))]; struct cmsghdr align; } control;
    struct iovec part = {text, sizeof text - 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(channel, &message, 0);
    if (size <= 0 || strcmp(text, word)) {
        if (size > 0)
            (void)!send(report_to, text, size, MSG_NOSIGNAL);
        _exit(1);
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_CREDENTIALS)
        fail("learn the pid of the init");
    struct ucred sender;
    memcpy(&sender, CMSG_DATA(header), sizeof sender);
    return sender.pid;
}

static const unsigned long QUIET = MS_NOSUID | MS_NODEV | MS_NOEXEC;

/* In the init's pid namespace: mount /proc over a directory of our own that holds an empty file, and cover what
   reveals the machine. Nothing here is looked up in a directory that the tenant can write. */
static void mount_views(void) {
    check(mount("tmpfs", "/proc", "tmpfs", QUIET, "mode=700,size=4k"), "mount below /proc");
    int empty = open("/proc/empty", O_CREAT | O_EXCL | O_RDONLY | O_CLOEXEC, 0444);
    check(empty, "make an empty file");
    check(mount("proc", "/proc", "proc", QUIET, NULL), "mount /proc");
    char empty_path[64];
    snprintf(empty_path, sizeof empty_path, "/proc/self/fd/%d", empty);
    for (int index = 0; index < settings.read_only_count; index++) {
        const char *path = settings.read_only[index];
        if (access(path, F_OK))
            continue;
        check(mount(path, path, NULL, MS_BIND, NULL), path);
        check(mount("none", path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | QUIET, NULL), path);
    }
    for (int index = 0; index < settings.hidden_count; index++) {
        const char *path = settings.hidden[index];
        struct stat status;
        if (lstat(path, &status))
            continue;
        if (S_ISDIR(status.st_mode))
            check(mount("tmpfs", path, "tmpfs", QUIET | MS_RDONLY, "size=0,nr_inodes=1"), path);
        else
            check(mount(empty_path, path, NULL, MS_BIND, NULL), path);
    }
}

/* A mount of /proc shows the pid namespace of the process that mounts it, so a child of a child does it. */
static void mount_views_of(pid_t init) {
    pid_t outer = fork();
    check(outer, "fork");
    if (!outer) {
        char path[64];
        snprintf(path, sizeof path, "%d/ns/pid", init);
        int space = openat(MACHINE_PROC, path, O_RDONLY | O_CLOEXEC);
        check(space, "open the pid namespace");
        check(setns(space, CLONE_NEWPID), "join the pid namespace");
        pid_t inner = fork();
        check(inner, "fork");
        if (!inner) {
            mount_views();
            _exit(0);
        }
        int status;
        _exit(waitpid(inner, &status, 0) == inner && status == 0 ? 0 : 1);
    }
    int status;
    if (waitpid(outer, &status, 0) != outer || status != 0)
        _exit(1); /* the child has said why */
}

/* Nobody inside makes a device node or changes a mount, whatever right they might come to. Before Linux 5.19 this would
   also forbid to rename files between directories, so it is left out there. */
static void restrict_files(void) {
    if (syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) < 2)
        return;
    struct landlock_ruleset_attr handled = {
        .handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_REFER};
    int rules = syscall(SYS_landlock_create_ruleset, &handled, sizeof handled.handled_access_fs, 0);
    check(rules, "make a Landlock ruleset");
    struct landlock_path_beneath_attr renames = {.allowed_access = LANDLOCK_ACCESS_FS_REFER,
                                                 .parent_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    check(renames.parent_fd, "open the root");
    check(syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &renames, 0), "allow renames");
    check(syscall(SYS_landlock_restrict_self, rules, 0), "restrict files");
    close(renames.parent_fd);
    close(rules);
}

/* Everything that is started from here has this AppArmor profile. A sandbox that should have one and cannot is not made. */
static void enter_profile(void) {
    char text[256];
    int length = snprintf(text, sizeof text, "changeprofile %s", settings.profile);
    int file = open("/proc/self/attr/apparmor/current", O_WRONLY | O_CLOEXEC);
    if (file < 0)
        file = open("/proc/self/attr/current", O_WRONLY | O_CLOEXEC);
    check(file, "open the AppArmor profile");
    check(write(file, text, length) == length ? 0 : -1, "enter the AppArmor profile");
    close(file);
}

static void confine(void) {
    if (settings.profile)
        enter_profile();
    for (int number = 0; number <= settings.last_capability; number++)
        if (!(settings.kept >> number & 1))
            check(prctl(PR_CAPBSET_DROP, number, 0, 0, 0), "drop a capability");
    check(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "clear ambient capabilities");
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{0}, {0}};
    data[0].effective = data[0].permitted = settings.kept;
    data[1].effective = data[1].permitted = settings.kept >> 32;
    check(syscall(SYS_capset, &header, data), "set capabilities");
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "forbid new privileges");
    restrict_files();
    size_t size;
    char *filter = read_whole(FILTER, 65536 * sizeof(struct sock_filter), &size);
    if (!filter)
        fail("read the system call filter");
    struct sock_fprog program = {size / sizeof(struct sock_filter), (struct sock_filter *)filter};
    if (size)
        check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), "install the system call filter");
    free(filter);
}

static void become_init(int channel) {
    report_to = channel;
    send_word(channel, "born");
    wait_for_go(channel);
    check(setsid() < 0 ? -1 : 0, "start a session");
    /* Copied into the less privileged user namespace, every mount is locked: nobody inside can undo one. */
    if (settings.has_user_namespace)
        check(unshare(CLONE_NEWNS), "lock the mounts");
    for (int index = 0; index < settings.limit_count; index++) {
        struct rlimit limit = {settings.limits[index].value, settings.limits[index].value};
        /* The kernel lets a user have as many descriptors under way between processes as its process may have open. If
           this were the same for the init, a program of the same user could keep it from answering. */
        if (settings.limits[index].resource == RLIMIT_NOFILE)
            program_files = limit;
        else
            check(setrlimit(settings.limits[index].resource, &limit), "set a limit");
    }
    umask(022);
    for (int target = 0; target < 3; target++)
        check(dup2(NOTHING, target), "close the standard streams");
    confine();
    send_word(channel, "ready");
    wait_for_go(channel);
    report_to = -1;
    check(dup2(SUPERVISOR, 3), "keep the supervisor's socket");
    check(fcntl(3, F_SETFD, FD_CLOEXEC), "keep the supervisor's socket");
    check(close_range(4, ~0U, 0), "close what belongs to the machine");
    serve(3);
}

/* Join the sandbox's user namespace, make the owner's pid namespace, and leave its first process behind. */
static void leave_init(int channel) {
    report_to = channel;
    close(SPAWNER);
    if (settings.has_user_namespace)
        check(setns(USER_NAMESPACE, CLONE_NEWUSER), "join the user namespace");
    check(setgroups(0, NULL), "drop groups");
    check(setresgid(0, 0, 0), "set the group");
    check(setresuid(0, 0, 0), "set the user");
    check(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "hide from tracing");
    check(unshare(CLONE_NEWPID), "make a pid namespace");
    pid_t init = fork();
    check(init, "fork");
    if (!init)
        become_init(channel);
    _exit(0);
}

int run_owner(void) {
    report_to = SPAWNER;
    prctl(PR_SET_NAME, "mooring-init", 0, 0, 0);
    check(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "hide from tracing");
    read_settings();
    static const int kinds[] = {CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNS};
    for (int index = 0; index < 6; index++)
        check(setns(FIRST_NAMESPACE + index, kinds[index]), "join a namespace");
    /* A mount namespace of our own, so that a new /proc can be mounted over the sandbox's. */
    check(unshare(CLONE_NEWNS), "make a mount namespace");
    check(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "make the mounts private");
    int pair[2], yes = 1;
    check(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), "make a channel");
    check(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes), "ask for credentials");
    pid_t intermediate = fork();
    check(intermediate, "fork");
    if (!intermediate) {
        close(pair[0]);
        leave_init(pair[1]);
    }
    close(pair[1]);
    pid_t init = receive_word(pair[0], "born");
    check(waitpid(intermediate, NULL, 0), "wait for the intermediate process");
    mount_views_of(init);
    send_word(pair[0], "go");
    receive_word(pair[0], "ready");
    char line[32];
    snprintf(line, sizeof line, "born %d", init);
    send_word(SPAWNER, line);
    wait_for_go(SPAWNER);
    send_word(pair[0], "go");
    return 0;
}

