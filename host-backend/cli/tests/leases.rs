//! Leases, of an engine that this test plays.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Plays srun and the agent that it runs: has a lease, notes signals, and ends with its input.
const SRUN: &str = r#"#!/bin/sh
trap 'echo signalled >>notes' INT TERM
echo '{"say":"hello","version":1,"release":"0.1.0"}'
echo '{"say":"lease","host":"gpu1","lease":{"name":{"vm":"lease-1","serial":1},"memory":1073741824,"gpu":0,"address":"127.0.0.1:1","arrivals":null,"authority":"","certificate":"","expires":0}}'
while read -r line; do :; done
echo ended >>notes
"#;

/// Waits until a file has this as its last line, and returns the file.
fn noted(path: &Path, last: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let notes = std::fs::read_to_string(path).unwrap_or_default();
        if notes.lines().last() == Some(last) {
            return notes;
        }
        assert!(Instant::now() < deadline, "{notes}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ctrl_c_ends_the_holder_and_not_its_agent() {
    for signal in [Signal::INT, Signal::TERM] {
        let directory = tempfile::tempdir().unwrap();
        let srun = directory.path().join("srun");
        std::fs::write(&srun, SRUN).unwrap();
        std::fs::set_permissions(&srun, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut holder = Command::new(env!("CARGO_BIN_EXE_paragpu"))
            .args([
                "pool", "hold", "lease", "--pool", "slurm", "--memory", "1GiB",
            ])
            .env("PATH", format!("{}:{path}", directory.path().display()))
            .current_dir(directory.path())
            // As a shell does, for all processes of a command.
            .process_group(0)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(holder.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.ends_with("of GPU 0 of gpu1 as lease-1\n"), "{line}");
        kill_process_group(Pid::from_child(&holder), signal).unwrap();
        assert!(holder.wait().unwrap().success());
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        let notes = noted(&directory.path().join("notes"), "ended");
        assert_eq!(notes, "ended\n", "{signal:?}");
    }
}
