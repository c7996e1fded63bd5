//! The connection from a KubeVirt VM to its claim: the VM's vsock, the daemon that serves
//! it, and the proxy that relays from there to the claim's lease.
//!
//! ```text
//!  VM                     compute container    hook's container            GPU host
//!  program ── vsock ──▶ QEMU ── vhost-user ──▶ vhost-device-vsock
//!                                                  │ unix socket
//!                                                  ▼
//!                                              proxy: TLS under the ───────▶ paragpud
//!                                              claim's key
//! ```
//!
//! The key stays in the hook's container. The VM needs no network.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use paragpu_communicator_secure::{Credentials, Files, KeyLifetime};
use paragpu_config::guest::{Guest, Tcp};
use paragpu_libvirt::vhost_vsock;
use paragpu_pool::proxy::{Entry, Proxy};
use paragpu_protocol::chain;

use crate::Error;

/// How long the vsock's daemon may take to start listening.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between two checks of its socket.
const LOOK: Duration = Duration::from_millis(10);
/// The VM's context identifier. This daemon serves no other VM.
const CID: u32 = 3;
/// The directory of the sockets, inside the one that the containers share. It is created
/// only when the VM starts, because virt-launcher takes any socket that it finds before
/// that for a hook's.
const OWN: &str = "paragpu";

/// The paths and programs of a VM.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory that this container shares with the VM's.
    pub directory: PathBuf,
    /// The same directory, as the VM's container sees it.
    pub compute: PathBuf,
    /// The vhost-user daemon that serves the vsock.
    pub vsock: PathBuf,
    /// The port of the vsock that is connected to the claim.
    pub port: u32,
}

/// The connection of one VM, which is created when the VM starts.
#[derive(Debug)]
pub struct Vm {
    options: Options,
    services: Option<VmServices>,
}

/// The processes and sockets that serve the VM. Dropping it ends them.
#[derive(Debug)]
struct VmServices {
    daemon: Child,
    _proxy: Proxy,
}

impl Drop for VmServices {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

impl Vm {
    /// Starts nothing yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let services = None;
        Self { options, services }
    }

    /// Adds a vsock to the VM's domain, and starts what connects it to the claim.
    ///
    /// # Errors
    /// [`Error`]: the domain cannot have a vsock, this container has no claim, or the
    /// vsock's daemon cannot be started.
    pub fn define(&mut self, domain: &[u8]) -> Result<String, Error> {
        let domain = std::str::from_utf8(domain)
            .map_err(|_| Error::Vm("the domain's XML is not UTF-8".into()))?;
        let socket = self.options.compute.join(OWN).join("vhost");
        let socket = socket
            .to_str()
            .ok_or_else(|| Error::Vm(format!("{} is not UTF-8", socket.display())))?;
        let domain = vhost_vsock::add(domain, socket)?;
        self.open()?;
        Ok(domain)
    }

    fn open(&mut self) -> Result<(), Error> {
        let serves = |services: &mut VmServices| matches!(services.daemon.try_wait(), Ok(None));
        if self.services.as_mut().is_some_and(serves) {
            return Ok(());
        }
        self.services = None;
        let guest = Guest::load().map_err(|error| Error::Configuration(chain(&error)))?;
        let (address, credentials) = claim(&guest.tcp)?;
        let own = self.options.directory.join(OWN);
        match fs::remove_dir_all(&own) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::file(&own)(error));
            }
            _ => {}
        }
        let made = DirBuilder::new().mode(0o700).create(&own);
        made.map_err(Error::file(&own))?;
        let end = own.join("vsock");
        // vhost-device-vsock maps a port to the socket with this name.
        let name = format!("vsock_{}", self.options.port);
        let proxy = Proxy::open(&Entry::Unix(own.join(name)))?;
        proxy.route_to(address, credentials);
        let socket = own.join("vhost");
        let mut daemon = Command::new(&self.options.vsock)
            .arg(format!("--guest-cid={CID}"))
            .arg(option("--socket=", &socket))
            .arg(option("--uds-path=", &end))
            .stdin(Stdio::null())
            .spawn()
            .map_err(Error::file(&self.options.vsock))?;
        let deadline = Instant::now() + PATIENCE;
        // Not checked by connecting, because the daemon would take that connection for
        // QEMU's.
        while !socket.exists() {
            let ended = daemon.try_wait().map_err(Error::file(&socket))?;
            if ended.is_some() || Instant::now() > deadline {
                let _ = daemon.kill();
                let _ = daemon.wait();
                let how = ended.map_or("does not listen".into(), |how| format!("ended ({how})"));
                let program = self.options.vsock.display();
                return Err(Error::Vm(format!(
                    "{program}, which serves the vsock, {how}"
                )));
            }
            std::thread::sleep(LOOK);
        }
        let _proxy = proxy;
        self.services = Some(VmServices { daemon, _proxy });
        Ok(())
    }
}

fn option(name: &str, path: &std::path::Path) -> std::ffi::OsString {
    let mut option = std::ffi::OsString::from(name);
    option.push(path);
    option
}

/// The address and the credentials of the claim's lease.
fn claim(tcp: &Tcp) -> Result<(&str, Credentials), Error> {
    let Some(address) = tcp.address.0.as_deref() else {
        let advice = "this container has no claim: its resources.claims must name one, whose \
                      driver sets PARAGPU_CONFIG";
        return Err(Error::Vm(advice.into()));
    };
    let files = Files {
        key_shared: tcp.key_shared,
        ..Files::new("tcp", &tcp.ca, &tcp.certificate, &tcp.key)
    };
    let credentials = Credentials::load(files, KeyLifetime::Lasting)
        .map_err(|error| Error::Configuration(chain(&error)))?;
    Ok((address, credentials))
}
