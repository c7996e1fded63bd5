//! Requirements of a pool's hosts and clients.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use paragpu_config::Configuration as _;
use paragpu_config::host::{Engine, Host};
use paragpu_pool::slurm::{self, Node};

use super::report::{Report, State};

const SIDE: &str = "pool";

/// Checks Slurm's commands and, on a GPU host, the requirements of leases.
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
    let nodes = nodes(report);
    match Host::load() {
        Ok(host) if !host.lease.socket.as_os_str().is_empty() => {
            of_host(report, &host);
            scripts(report);
            if let Some(nodes) = nodes {
                node(report, &host, &nodes);
            }
        }
        Ok(_) => {
            let detail = "lease.socket is not set: this machine gives no leases";
            report.add(SIDE, "leases", State::Absent, detail);
        }
        Err(error) => {
            report.add(SIDE, Host::FILE, State::Bad, error.to_string());
        }
    }
}

/// The nodes that have shards; `None` if Slurm does not answer.
fn nodes(report: &mut Report) -> Option<BTreeMap<String, Node>> {
    for (set, needed) in slurm::unfit_settings().unwrap_or_default() {
        report
            .add(SIDE, "slurm.conf", State::Bad, set)
            .advise(format!("set {needed}, and restart slurmctld and slurmd"));
    }
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
            Some(nodes)
        }
        Ok(nodes) => {
            for (name, node) in &nodes {
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
            Some(nodes)
        }
        Err(error) => {
            report
                .add(SIDE, "slurmctld", State::Bad, error.to_string())
                .advise(
                    "is slurm.conf here, or SLURM_CONF set, and munge running with the site's key?",
                );
            None
        }
    }
}

/// Checks that Slurm knows this host under the name that paragpud uses.
fn node(report: &mut Report, host: &Host, nodes: &BTreeMap<String, Node>) {
    let name = match host.lease.node.as_str() {
        "" => rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .split('.')
            .next()
            .unwrap_or_default()
            .to_owned(),
        name => name.to_owned(),
    };
    if !nodes.contains_key(&name) {
        let detail = format!("Slurm has no node {name} with shards");
        report
            .add(SIDE, "lease.node", State::Bad, detail)
            .advise("set lease.node to this host's NodeName, or give that node shards");
    }
}

/// Checks the scripts that Slurm runs on each node, which are optional.
fn scripts(report: &mut Report) {
    // Another check reports that Slurm does not answer.
    let Ok(found) = slurm::scripts() else { return };
    let examples = [
        ("Prolog", "prolog.sh"),
        ("Epilog", "epilog.sh"),
        ("HealthCheckProgram", "health.sh"),
    ];
    for (name, example) in examples {
        let mut own = found.iter().filter(|(key, _)| *key == name).peekable();
        if own.peek().is_none() {
            let detail = format!("slurm.conf names none; {example} of the examples would do");
            report.add(SIDE, name, State::Absent, detail);
        }
        for (_, path) in own {
            let mode = std::fs::metadata(path).map(|found| found.permissions().mode());
            let path = path.display();
            match mode {
                Ok(mode) if mode & 0o111 != 0 => {
                    report.add(SIDE, name, State::Good, path.to_string());
                }
                Ok(_) => {
                    let detail = format!("{path}: cannot be executed");
                    let finding = report.add(SIDE, name, State::Bad, detail);
                    finding.advise("chmod 755: Slurm drains a node whose script fails");
                }
                Err(error) => {
                    let detail = format!("{path}: {error}");
                    let finding = report.add(SIDE, name, State::Bad, detail);
                    finding.advise("it must be on each node: Slurm drains one whose script fails");
                }
            }
        }
    }
}

fn of_host(report: &mut Report, host: &Host) {
    let lease = &host.lease;
    for (name, secret) in [("ca.pem", false), ("ca.key", true)] {
        file(report, &lease.authority.join(name), secret);
    }
    if host.tcp.ca.as_os_str().is_empty() {
        report
            .add(SIDE, "tcp.ca", State::Bad, "is empty")
            .advise("set it to the authority's ca.pem: leases come with certificates");
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

fn file(report: &mut Report, path: &Path, secret: bool) {
    match std::fs::metadata(path) {
        Ok(found) if secret && found.permissions().mode() & 0o077 != 0 => {
            let detail = format!("{}: others than its owner may use it", path.display());
            report
                .add(SIDE, "authority", State::Bad, detail)
                .advise("give it to paragpud's user, with mode 600: its reader can be any host");
        }
        Ok(_) => {
            report.add(SIDE, "authority", State::Good, path.display().to_string());
        }
        Err(error) => {
            let detail = format!("{}: {error}", path.display());
            report.add(SIDE, "authority", State::Bad, detail);
        }
    }
}
