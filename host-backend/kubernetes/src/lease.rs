//! A lease of the host's daemon, held over its lease socket.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use paragpu_control::admin::{Request, Response};
use paragpu_control::frame::FrameError;
use paragpu_control::json_lines;
use paragpu_control::lease::{Claim, Lease};
use paragpu_protocol::chain;

use crate::Error;

/// How long to wait for the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The connection that holds a lease. When it closes, the daemon keeps the lease for its
/// grace period.
#[derive(Debug)]
pub(crate) struct Held {
    daemon: UnixStream,
}

impl Held {
    /// Claims a lease. `lost` is called when its connection closes.
    pub(crate) fn claim(
        socket: &Path,
        claim: Claim,
        lost: impl FnOnce() + Send + 'static,
    ) -> Result<(Self, Lease), Error> {
        let failed = |error| Error::file(socket)(error);
        let broken = |error: FrameError| Error::Daemon(chain(&error));
        let daemon = UnixStream::connect(socket).map_err(failed)?;
        let reader = daemon.try_clone().map_err(failed)?;
        reader.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        json_lines::write(&daemon, &Request::Claim(claim)).map_err(broken)?;
        let mut answers = BufReader::new(reader);
        let answer = json_lines::read::<Response>(&mut answers).map_err(broken)?;
        let lease = match answer {
            Some(Response::Lease(lease)) => lease,
            Some(Response::Error { error }) => return Err(Error::Lease(error)),
            Some(other) => return Err(Error::Daemon(format!("it answers {other:?}"))),
            None => return Err(Error::Daemon("it ended".into())),
        };
        let reader = answers.get_ref();
        reader.set_read_timeout(None).map_err(failed)?;
        thread::spawn(move || {
            loop {
                match json_lines::read::<Response>(&mut answers) {
                    Ok(Some(Response::Released {})) => return,
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return lost(),
                }
            }
        });
        Ok((Self { daemon }, lease))
    }

    /// Ends the lease. The connection stays open until the daemon has confirmed.
    pub(crate) fn release(self) {
        // A daemon that is gone has ended the lease, or will let it expire.
        let _ = json_lines::write(&self.daemon, &Request::Release {});
    }
}
