// Opens carriers in the ways that programs do.
//   program open CARRIER...      each is right, and has a last error of its own
//   program cycles N CARRIER     opened and closed N times
//   program threads CARRIER...   by a thread each, again and again
//   program fork CARRIER...      as threads, with children between that open
//                                them, too, and run /bin/true
//   program unserved CARRIER     prints what a function that is newer returns
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *path, const char *why) {
    fprintf(stderr, "%s: %s\n", path, why);
    _exit(1);
}

static void *open_carrier(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        die(path, dlerror());
    }
    return handle;
}

static void *function(void *handle, const char *name) {
    void *address = dlsym(handle, name);
    if (!address) {
        die(name, "is missing");
    }
    return address;
}

static void check(void *handle, const char *path) {
    const char *wrong = ((const char *(*)(void))function(handle, "carrier_check"))();
    if (wrong) {
        die(path, wrong);
    }
}

static int fail_with(void *handle, int code) {
    return ((int (*)(int))function(handle, "carrier_fail"))(code);
}

static int last(void *handle) {
    return ((int (*)(void))function(handle, "carrier_last"))();
}

static void open_all(int count, char **paths) {
    void *handles[16];
    for (int at = 0; at < count; ++at) {
        handles[at] = open_carrier(paths[at]);
        check(handles[at], paths[at]);
        // It is there, and opened once more.
        void *again = dlopen(paths[at], RTLD_NOW | RTLD_NOLOAD);
        if (again != handles[at] || dlclose(again)) {
            die(paths[at], "RTLD_NOLOAD");
        }
        check(handles[at], paths[at]);
    }
    for (int at = 0; at < count; ++at) {
        fail_with(handles[at], 100 + at);
    }
    for (int at = 0; at < count; ++at) {
        if (last(handles[at]) != 100 + at) {
            die(paths[at], "got another's last error");
        }
    }
}

// Nobody may be in the C library's loader when a process with threads forks: a
// child would wait for it for ever, with the redirector or without.
static pthread_rwlock_t forking = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static void cycles(int count, const char *path) {
    for (int at = 0; at < count; ++at) {
        pthread_rwlock_rdlock(&forking);
        void *handle = open_carrier(path);
        check(handle, path);
        fail_with(handle, 7);
        if (dlclose(handle)) {
            die(path, dlerror());
        }
        pthread_rwlock_unlock(&forking);
    }
}

static int rounds = 200;

static void *thread(void *path) {
    cycles(rounds, path);
    return NULL;
}

static void threads(int count, char **paths, int forks) {
    pthread_t handles[16];
    for (int at = 0; at < count; ++at) {
        if (pthread_create(&handles[at], NULL, thread, paths[at])) {
            die(paths[at], "no thread");
        }
    }
    for (int at = 0; at < forks; ++at) {
        pthread_rwlock_wrlock(&forking);
        pid_t child = fork();
        if (child == 0) {
            pthread_rwlock_init(&forking, NULL);
            cycles(3, paths[at % count]);
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        pthread_rwlock_unlock(&forking);
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status) {
            die("fork", "a child failed");
        }
    }
    for (int at = 0; at < count; ++at) {
        pthread_join(handles[at], NULL);
    }
}

int main(int argc, char **argv) {
    const char *way = argv[1];
    if (!strcmp(way, "open")) {
        open_all(argc - 2, argv + 2);
    } else if (!strcmp(way, "cycles")) {
        cycles(atoi(argv[2]), argv[3]);
    } else if (!strcmp(way, "threads")) {
        threads(argc - 2, argv + 2, 0);
    } else if (!strcmp(way, "fork")) {
        threads(argc - 2, argv + 2, 50);
    } else if (!strcmp(way, "unserved")) {
        void *handle = open_carrier(argv[2]);
        int (*unserved)(void) = (int (*)(void))function(handle, "carrier_unserved");
        int code = unserved();
        printf("%d %d %d\n", code, unserved(), last(handle));
        return argc;
    }
    puts("good");
    return 0;
}
