//! Drops what a worker does not need, so that a compromised worker gains little.
//!
//! There are two steps. [`begin`] runs before any thread exists, if the device allows
//! that, so that all threads inherit it, and before anything waits for the worker. It
//! drops capabilities, privileged programs, tracing by the same user, exec, the network,
//! and all system calls that a session does not need. [`finish`] runs once the session is
//! known and before its guest's first call. It drops access to other files. The log and
//! `paragpu doctor` report what could not be enforced.

mod files;
mod filter;
mod privileges;
mod root;

use std::path::Path;

use crate::arguments::{Calls, DeviceKind};

/// A measure, and the reason if it is not enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// Its name.
    pub name: &'static str,
    /// Why it is not enforced.
    pub enforced: Result<(), String>,
}

impl Measure {
    fn new(name: &'static str, enforced: Result<(), impl std::fmt::Display>) -> Self {
        let enforced = enforced.map_err(|error| error.to_string());
        Self { name, enforced }
    }
}

/// The first step, for the calling thread and those that it starts.
///
/// A process that was started `apart` has separate namespaces, and rights in them until
/// it [becomes its VM's user](become_user).
#[must_use]
pub fn begin(kind: DeviceKind, calls: Calls, apart: bool) -> Vec<Measure> {
    let mut all = vec![
        Measure::new("first to die when memory runs out", privileges::die_first()),
        Measure::new("not dumpable", privileges::not_dumpable()),
        Measure::new("no new privileges", privileges::no_new_privileges()),
    ];
    if apart && kind == DeviceKind::Software {
        // A driver opens files when it needs them.
        all.push(Measure::new("no files of the host", root::leave()));
    } else if !apart && kind == DeviceKind::Software {
        // A driver may need the host's network namespace, for its own sockets.
        all.push(Measure::new(
            "network and IPC namespaces of its own",
            privileges::unshare(),
        ));
    }
    all.push(Measure::new(
        "no capabilities",
        privileges::no_capabilities(apart),
    ));
    all.push(Measure::new(
        "no programs, TCP and signals to others",
        files::no_programs(),
    ));
    if !apart && (kind == DeviceKind::Software || calls != Calls::Any) {
        // A process that is apart has yet to become its VM's user.
        all.push(Measure::new("no other user", filter::deny_users()));
    }
    all.push(match kind {
        DeviceKind::Software => Measure::new(
            "no system calls but those of a session",
            filter::allow_session(),
        ),
        DeviceKind::Cuda => Measure::new(
            "no system calls but those of a session and the driver",
            match calls {
                Calls::Any => Err("confine.cuda_calls is \"any\"".into()),
                Calls::Allow => filter::allow_driver(),
                Calls::Deny | Calls::Learn => filter::deny_ways_out().and(Err(
                    "confine.cuda_calls is not \"allow\": only calls that lead out are refused"
                        .into(),
                )),
            },
        ),
    });
    report(&all);
    all
}

/// Logs the system calls that a list for NVIDIA's driver lacks, from now on: before it
/// opens its GPU, since it may open another one in a confined worker.
pub fn learn() {
    let observed = privileges::no_new_privileges()
        .map_err(|error| error.to_string())
        .and_then(|()| filter::observe_others());
    report(&[Measure::new("observed", observed)]);
}

/// The second step: of all files except the system's and the driver's, only those beneath
/// `own`, the VM's directory of images, can be read from now on.
///
/// A process that was started `apart` cannot change any others either. One that was not
/// continues periodic checkpoints if the daemon dies, in directories that nobody has named
/// yet.
pub fn finish(kind: DeviceKind, own: Option<&Path>, apart: bool) {
    let driver = match kind {
        DeviceKind::Cuda => files::Driver::find(),
        DeviceKind::Software => files::Driver::default(),
    };
    let name = match apart {
        true => "no files of others, and no changes to them",
        false => "no files of others",
    };
    let kept = files::only_beneath(own, &driver, apart);
    report(&[Measure::new(name, kept)]);
}

/// Makes a process that was started apart this user permanently, before it does anything
/// else for a VM.
pub fn become_user(user: u32) -> std::io::Result<()> {
    if user == 0 {
        return Err(std::io::Error::other("user 0 is not a VM's"));
    }
    crate::sys::process::become_user(user)?;
    // Threads that ran before have none, because they are not the namespace's root.
    // Without any, the kernel refuses another user.
    privileges::set_to(privileges::NONE)
}

fn report(measures: &[Measure]) {
    for measure in measures {
        match &measure.enforced {
            Ok(()) => tracing::debug!(measure = measure.name, "enforced"),
            Err(reason) => {
                tracing::info!(measure = measure.name, reason, "not enforced");
            }
        }
    }
}
