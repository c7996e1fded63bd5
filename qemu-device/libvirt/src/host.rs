//! The device processes of this host's domains.
//!
//! systemd runs them if it runs the host (`paragpu-device@VM.service`), otherwise Debian's
//! start-stop-daemon. Both start them with the right user and group, wait until they
//! listen, and can find them later.
//!
//! A record in [`Host::state`] says to which domain a device process belongs. So it is
//! stopped when its domain ends, whatever happened in between, and two domains with one
//! socket are detected before QEMU starts.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::{Error, VmName};

/// The program that starts and stops device processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supervisor {
    /// The template unit `paragpu-device@`.
    Systemd,
    /// Debian's start-stop-daemon, for hosts without systemd.
    StartStopDaemon,
}

/// The paths and programs of a host.
#[derive(Debug, Clone)]
pub struct Host {
    /// The directory of device processes' sockets, which hypervisors may access.
    pub sockets: PathBuf,
    /// The directory of records about them, for root only. It is not the directory of the
    /// sockets, which belongs to the user of processes that guests talk to.
    pub state: PathBuf,
    /// The supervisor; `None` if the host has neither.
    pub supervisor: Option<Supervisor>,
    /// Where programs are searched, as in `PATH`.
    pub programs: String,
}

/// The domain that a device process is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner<'a> {
    /// Its UUID, which identifies it.
    pub uuid: &'a str,
    /// Its name, for messages.
    pub name: &'a str,
}

impl<'a> Owner<'a> {
    /// Parses a record.
    fn read(note: &'a str) -> Self {
        let (uuid, name) = note.trim_end().split_once(' ').unwrap_or((note, note));
        Self { uuid, name }
    }
}

/// The user and group of device processes. Hypervisors are in the group.
const USER: &str = "paragpu";
const GROUP: &str = "kvm";

impl Host {
    /// The host that this process runs on.
    #[must_use]
    pub fn this() -> Self {
        let programs = "/usr/sbin:/usr/bin:/sbin:/bin";
        let has = |name| {
            programs
                .split(':')
                .any(|folder| Path::new(folder).join(name).exists())
        };
        Self {
            sockets: "/run/paragpu-device".into(),
            state: "/run/paragpu-libvirt".into(),
            supervisor: if Path::new("/run/systemd/system").is_dir() {
                Some(Supervisor::Systemd)
            } else {
                has("start-stop-daemon").then_some(Supervisor::StartStopDaemon)
            },
            programs: programs.into(),
        }
    }

    /// The path at which the VM's device process listens.
    #[must_use]
    pub fn socket(&self, vm: &VmName) -> PathBuf {
        self.sockets.join(format!("{vm}.sock"))
    }

    /// The VM whose device process is started and stopped for this socket; `None` for a
    /// socket that is managed otherwise.
    #[must_use]
    pub fn vm_of(&self, socket: &Path) -> Option<VmName> {
        let name = socket.strip_prefix(&self.sockets).ok()?.to_str()?;
        name.strip_suffix(".sock")?.parse().ok()
    }

    /// Starts the VM's device process for a domain, and returns when QEMU can connect. A
    /// process that is already running is used, unless it belongs to another domain.
    ///
    /// # Errors
    /// Nothing is left behind: [`Error::SocketOfOther`], [`Error::Process`],
    /// [`Error::NoSupervisor`], [`Error::System`].
    pub fn start(&self, vm: &VmName, owner: Owner<'_>) -> Result<(), Error> {
        let supervisor = self.supervisor.ok_or(Error::NoSupervisor)?;
        self.claim(vm, owner)?;
        let started = match supervisor {
            Supervisor::Systemd => self.start_unit(vm),
            Supervisor::StartStopDaemon => self.start_daemon(vm),
        };
        if started.is_err() {
            // Stops the started process. The first error matters more than one from here.
            let _ = self.stop(vm);
        }
        started
    }

    /// Stops the VM's device process, if it runs.
    ///
    /// # Errors
    /// [`Error::Process`], [`Error::System`].
    pub fn stop(&self, vm: &VmName) -> Result<(), Error> {
        match self.supervisor {
            Some(Supervisor::Systemd) => {
                let unit = unit(vm);
                let stopped = self.run("systemctl", &["stop", &unit])?;
                let _ = self.run("systemctl", &["reset-failed", &unit])?;
                // 5: the unit is not installed, and so not running.
                if !stopped.status.success() && stopped.status.code() != Some(5) {
                    return Err(process(vm, &stopped.stderr));
                }
            }
            Some(Supervisor::StartStopDaemon) => {
                let mut command = self.command("start-stop-daemon");
                command
                    .args(["--stop", "--quiet", "--oknodo", "--retry", "TERM/10/KILL/5"])
                    .args(["--pidfile", &self.note(vm, "pid"), "--remove-pidfile"])
                    .args(["--exec", &self.program()]);
                let stopped = output(&mut command)?;
                if !stopped.status.success() {
                    return Err(process(vm, &stopped.stderr));
                }
                remove(self.note(vm, "log").as_ref())?;
            }
            None => {}
        }
        remove(self.note(vm, "domain").as_ref())
    }

    /// Stops all device processes of a domain that has ended, and removes the files of its
    /// arrival.
    ///
    /// # Errors
    /// As [`Self::stop`], for the first that could not be stopped.
    pub fn stop_all(&self, uuid: &str) -> Result<(), Error> {
        let entries = match fs::read_dir(&self.state) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::system("read", &self.state)(error)),
        };
        let mut result = self.arrival(uuid).iter().try_for_each(|note| remove(note));
        for entry in entries.flatten() {
            let name = entry.file_name();
            let vm = name.to_str().and_then(|name| name.strip_suffix(".domain"));
            let Some(vm) = vm.and_then(|vm| vm.parse::<VmName>().ok()) else {
                continue;
            };
            if fs::read_to_string(entry.path()).is_ok_and(|note| Owner::read(&note).uuid == uuid) {
                result = result.and(self.stop(&vm));
            }
        }
        result
    }

    /// Starts `paragpu arrive` for a domain, without waiting for it.
    ///
    /// # Errors
    /// [`Error::Arrival`], [`Error::NoSupervisor`], [`Error::System`].
    pub fn await_arrival(&self, uuid: &str) -> Result<(), Error> {
        let program = self.path_of("paragpu", "/usr/bin");
        let started = match self.supervisor.ok_or(Error::NoSupervisor)? {
            Supervisor::Systemd => {
                let log = "--property=SyslogIdentifier=paragpu-arrive";
                let arguments = ["--quiet", "--collect", log, &program, "arrive", uuid];
                self.run("systemd-run", &arguments)?
            }
            Supervisor::StartStopDaemon => {
                self.make_state()?;
                let [pid, log] = self.arrival(uuid);
                let mut command = self.command("start-stop-daemon");
                command
                    .args(["--start", "--quiet", "--oknodo", "--background"])
                    .args(["--make-pidfile", "--pidfile"])
                    .arg(pid)
                    .arg("--output")
                    .arg(log)
                    .args(["--exec", &program, "--", "arrive", uuid]);
                output(&mut command)?
            }
        };
        if started.status.success() {
            return Ok(());
        }
        Err(Error::Arrival {
            domain: uuid.to_owned(),
            reason: last_line(&started.stderr),
        })
    }

    /// Records that the VM's device process belongs to this domain.
    fn claim(&self, vm: &VmName, owner: Owner<'_>) -> Result<(), Error> {
        self.make_state()?;
        let note = PathBuf::from(self.note(vm, "domain"));
        let mut options = OpenOptions::new();
        match options.write(true).create_new(true).mode(0o600).open(&note) {
            Ok(mut file) => file
                .write_all(format!("{} {}\n", owner.uuid, owner.name).as_bytes())
                .map_err(Error::system("write", note)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let found = fs::read_to_string(&note).map_err(Error::system("read", &note))?;
                let found = Owner::read(&found);
                if found.uuid == owner.uuid {
                    return Ok(());
                }
                Err(Error::SocketOfOther {
                    socket: self.socket(vm),
                    domain: found.name.to_owned(),
                })
            }
            Err(error) => Err(Error::system("write", note)(error)),
        }
    }

    /// Creates the directory of records.
    fn make_state(&self) -> Result<(), Error> {
        match DirBuilder::new().mode(0o700).create(&self.state) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(Error::system("make", &self.state)(error))
            }
            _ => Ok(()),
        }
    }

    fn start_unit(&self, vm: &VmName) -> Result<(), Error> {
        let unit = unit(vm);
        let started = self.run("systemctl", &["start", &unit])?;
        if started.status.success() {
            return Ok(());
        }
        // The process's own message, if it got that far.
        let asked = ["show", "--property=StatusText", "--value", &unit];
        let said = self.run("systemctl", &asked)?.stdout;
        if !said.trim_ascii().is_empty() {
            return Err(process(vm, &said));
        }
        // systemctl prints two lines: that it failed, and where to read why.
        let said = String::from_utf8_lossy(&started.stderr);
        let lines: Vec<&str> = said.lines().map(str::trim).collect();
        Err(process(vm, lines.join(" ").as_bytes()))
    }

    fn start_daemon(&self, vm: &VmName) -> Result<(), Error> {
        self.make_folder()?;
        let log = self.note(vm, "log");
        let mut command = self.command("start-stop-daemon");
        command
            .args([
                "--start",
                "--quiet",
                "--oknodo",
                "--background",
                "--make-pidfile",
            ])
            .args(["--pidfile", &self.note(vm, "pid"), "--output", &log])
            .args([
                "--notify-await",
                "--notify-timeout",
                "20",
                "--umask",
                "0077",
            ])
            .args(["--chuid", &format!("{USER}:{GROUP}")])
            .args(["--exec", &self.program(), "--", "--vm", vm.as_str()])
            .args(["--socket-mode", "660", "--socket"])
            .arg(self.socket(vm));
        let started = output(&mut command)?;
        if started.status.success() {
            return Ok(());
        }
        let log = fs::read(log).unwrap_or_default();
        let own = !log.trim_ascii().is_empty();
        Err(process(vm, if own { &log } else { &started.stderr }))
    }

    /// Creates the directory of sockets, as systemd-tmpfiles does on hosts with systemd.
    fn make_folder(&self) -> Result<(), Error> {
        if self.sockets.exists() {
            return Ok(());
        }
        let mut command = self.command("install");
        command.args(["-d", "-m", "750", "-o", USER, "-g", GROUP]);
        let made = output(command.arg(&self.sockets))?;
        if made.status.success() {
            return Ok(());
        }
        let reason = last_line(&made.stderr);
        Err(Error::system("make", &self.sockets)(std::io::Error::other(
            reason,
        )))
    }

    /// The path of the device process's program.
    fn program(&self) -> String {
        self.path_of("paragpu-qemu-device", "/usr/sbin")
    }

    /// The path of a program that packages install in `folder`.
    fn path_of(&self, name: &str, folder: &str) -> String {
        let found = self
            .programs
            .split(':')
            .map(|folder| format!("{folder}/{name}"))
            .find(|path| Path::new(path).exists());
        found.unwrap_or_else(|| format!("{folder}/{name}"))
    }

    fn note(&self, vm: &VmName, kind: &str) -> String {
        self.state
            .join(format!("{vm}.{kind}"))
            .display()
            .to_string()
    }

    /// The files for the process ID and the output of `paragpu arrive` for a domain,
    /// without systemd. They cannot collide with a VM's, because VM names have no colon.
    fn arrival(&self, uuid: &str) -> [PathBuf; 2] {
        ["pid", "log"].map(|kind| self.state.join(format!("arrive:{uuid}.{kind}")))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("PATH", &self.programs).env("LC_ALL", "C.UTF-8");
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<Output, Error> {
        output(self.command(program).args(arguments))
    }
}

fn output(command: &mut Command) -> Result<Output, Error> {
    let run = command.stdin(Stdio::null()).output();
    run.map_err(|source| Error::system("run", command.get_program())(source))
}

fn unit(vm: &VmName) -> String {
    format!("paragpu-device@{vm}.service")
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::system("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// The error with the last message of a process, which says why it exited.
fn process(vm: &VmName, said: &[u8]) -> Error {
    Error::Process {
        vm: vm.to_string(),
        reason: last_line(said),
    }
}

fn last_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let line = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let line = line.unwrap_or("it gave no reason");
    line.strip_prefix("paragpu-qemu-device: ")
        .unwrap_or(line)
        .to_owned()
}
