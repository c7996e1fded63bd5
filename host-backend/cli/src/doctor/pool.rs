//! A pool: what its hosts and requesters need beside the rest.

use std::path::Path;
use std::process::{Command, Stdio};

use paragpu_config::Configuration as _;
use paragpu_config::host::{Engine, Host};
use paragpu_pool::slurm;

use super::{Report, State};

const SIDE: &str = "pool";

/// Slurm's commands, and on a GPU host what leases need.
pub(super) fn examine(report: &mut Report) {
    for program in ["srun", "scontrol", "squeue", "scancel"] {
        let started = Command::new(program)
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        match started {
            Ok(output) if output.status.success() => {
                let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                report.add(SIDE, program, State::Good, version);
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                report.add(SIDE, program, State::Bad, said);
            }
            Err(error) => {
                let finding = report.add(SIDE, program, State::Bad, error.to_string());
                finding.advise("install Slurm's client programs");
            }
        }
    }
    nodes(report);
    match Host::load() {
        Ok(host) if !host.lease.socket.as_os_str().is_empty() => of_host(report, &host),
        Ok(_) => {
            let detail = "lease.socket is not set: this machine gives no leases";
            report.add(SIDE, "leases", State::Absent, detail);
        }
        Err(error) => {
            report.add(SIDE, Host::FILE, State::Bad, error.to_string());
        }
    }
}

fn nodes(report: &mut Report) {
    match slurm::nodes() {
        Ok(nodes) if nodes.is_empty() => {
            report
                .add(
                    SIDE,
                    "shards",
                    State::Bad,
                    "no node of Slurm has gres/shard",
                )
                .advise("docs/pool.md has the lines for slurm.conf and gres.conf");
        }
        Ok(nodes) => {
            for (name, node) in nodes {
                let state = if node.takes {
                    State::Good
                } else {
                    State::Warning
                };
                let takes = if node.takes {
                    ""
                } else {
                    "; takes no jobs now"
                };
                let detail = format!("{} of {} shards leased{takes}", node.used, node.shards);
                report.add(SIDE, name, state, detail);
            }
        }
        Err(error) => {
            report.add(SIDE, "slurmctld", State::Bad, error.to_string());
        }
    }
}

fn of_host(report: &mut Report, host: &Host) {
    let lease = &host.lease;
    for name in ["ca.pem", "ca.key"] {
        let path = lease.authority.join(name);
        file(report, &path);
    }
    let socket = &lease.socket;
    match std::os::unix::net::UnixStream::connect(socket) {
        Ok(_) => report.add(SIDE, "agents", State::Good, socket.display().to_string()),
        Err(error) => {
            let detail = format!("{}: {error}", socket.display());
            report.add(SIDE, "agents", State::Bad, detail)
        }
    };
    let unspecified = host.tcp.listen.0.is_some_and(|it| it.ip().is_unspecified());
    if unspecified && host.tcp.announce.0.is_none() {
        report
            .add(SIDE, "tcp.announce", State::Bad, "is empty")
            .advise("set it to HOST:PORT, as users of leases reach this host");
    }
    if host.migration.listen.0.is_none() {
        report
            .add(
                SIDE,
                "migration",
                State::Warning,
                "migration.listen is empty",
            )
            .advise("without it no lease can move here");
    }
    if lease.engine != Engine::Slurm {
        report.add(
            SIDE,
            "engine",
            State::Warning,
            "lease.engine is not \"slurm\"",
        );
    }
    match lease.checkpoints.as_os_str().is_empty() {
        true => report.add(
            SIDE,
            "checkpoints",
            State::Absent,
            "lease.checkpoints is not set",
        ),
        false => {
            let there = lease.checkpoints.is_dir();
            let state = if there { State::Good } else { State::Bad };
            report.add(
                SIDE,
                "checkpoints",
                state,
                lease.checkpoints.display().to_string(),
            )
        }
    };
}

fn file(report: &mut Report, path: &Path) {
    match std::fs::metadata(path) {
        Ok(_) => report.add(SIDE, "authority", State::Good, path.display().to_string()),
        Err(error) => {
            let detail = format!("{}: {error}", path.display());
            report.add(SIDE, "authority", State::Bad, detail)
        }
    };
}
