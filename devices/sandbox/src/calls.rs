//! System calls, by seccomp (seccomp(2)).

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, apply_filter_all_threads,
};

use crate::SandboxError;

/// The connections that a server makes while it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// No connections.
    None,
    /// To Unix sockets, such as its switch's. A filter cannot distinguish them.
    Unix,
    /// Pairs of connected Unix sockets, which it gives to its clients. Each pair may hold
    /// descriptors that count for all servers of its user (unix(7), `ETOOMANYREFS`).
    Pairs,
}

/// Rules by the number of their system call; a call with an empty list of rules is permitted with
/// all arguments.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// System calls that serving needs, with any arguments.
const PERMITTED: &[i64] = &[
    // Operations on open descriptors.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fadvise64,
    // The kind of a client's descriptor, as /proc/self/fd names it.
    libc::SYS_readlinkat,
    // Connections.
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // Waiting, events and time.
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    // Transfers by the kernel.
    libc::SYS_io_uring_enter,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_io_destroy,
    // Memory.
    libc::SYS_memfd_create,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Threads of this process, and signals to itself.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// System calls that newer ones replace, and that glibc uses on architectures that have them.
#[cfg(target_arch = "x86_64")]
const PERMITTED_HERE: &[i64] = &[
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_readlink,
    libc::SYS_dup2,
];
#[cfg(not(target_arch = "x86_64"))]
const PERMITTED_HERE: &[i64] = &[];

/// Commands of fcntl(2) that serving needs.
const FCNTLS: &[i32] = &[
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GET_SEALS,
    libc::F_ADD_SEALS,
];

/// Restricts all threads.
pub(crate) fn restrict(connections: Connections) -> Result<(), SandboxError> {
    for filter in filters(connections)? {
        apply_filter_all_threads(&filter)?;
    }
    Ok(())
}

/// Returns the filters. The first one refuses clone3, whose flags are in memory, so that glibc uses
/// clone; the second one permits the listed calls.
fn filters(connections: Connections) -> Result<[BpfProgram; 2], Error> {
    let old = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let errno = |errno: i32| SeccompAction::Errno(errno.unsigned_abs());
    Ok([
        program(old, SeccompAction::Allow, errno(libc::ENOSYS))?,
        program(
            permitted(connections)?,
            errno(libc::EPERM),
            SeccompAction::Allow,
        )?,
    ])
}

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, Error> {
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()?)
}

fn permitted(connections: Connections) -> Result<Rules, BackendError> {
    let any = PERMITTED.iter().chain(PERMITTED_HERE);
    let mut rules: Rules = any.map(|call| (*call, Vec::new())).collect();
    let thread = bits(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?;
    rules.insert(libc::SYS_clone, vec![thread]);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![bits(2, libc::PROT_EXEC, 0)?]);
    }
    // F_SETOWN and F_SETSIG are missing: with them a descriptor can signal any process.
    let fcntls = FCNTLS.iter().map(|command| equal(1, *command));
    rules.insert(libc::SYS_fcntl, fcntls.collect::<Result<_, _>>()?);
    if connections == Connections::Pairs {
        // SOCK_STREAM and SOCK_SEQPACKET: datagram sockets could reach any socket by its path.
        rules.insert(libc::SYS_socketpair, vec![bits(1, libc::SOCK_DGRAM, 0)?]);
    }
    rules.insert(libc::SYS_prctl, vec![equal(0, libc::PR_SET_NAME)?]);
    let fionbio = libc::FIONBIO;
    rules.insert(libc::SYS_ioctl, vec![rule(1, SeccompCmpOp::Eq, fionbio)?]);
    // abort(3) signals its own thread.
    let own = rustix::process::getpid().as_raw_nonzero().get();
    rules.insert(libc::SYS_tgkill, vec![equal(0, own)?]);
    if connections == Connections::Unix {
        rules.insert(libc::SYS_socket, vec![equal(0, libc::AF_UNIX)?]);
        rules.insert(libc::SYS_connect, Vec::new());
    }
    Ok(rules)
}

/// Permits a call whose argument `number` is `value`.
fn equal(number: u8, value: i32) -> Result<SeccompRule, BackendError> {
    rule(number, SeccompCmpOp::Eq, u64::from(value.unsigned_abs()))
}

/// Permits a call whose argument `number` has `value` in the bits of `mask`.
fn bits(number: u8, mask: i32, value: i32) -> Result<SeccompRule, BackendError> {
    let mask = SeccompCmpOp::MaskedEq(u64::from(mask.unsigned_abs()));
    rule(number, mask, u64::from(value.unsigned_abs()))
}

fn rule(number: u8, compare: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    let condition = SeccompCondition::new(number, SeccompCmpArgLen::Dword, compare, value)?;
    SeccompRule::new(vec![condition])
}
