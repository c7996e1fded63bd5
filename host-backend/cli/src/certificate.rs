//! Makes an authority and certificates of it: for hosts, and for VMs.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use paragpu_communicator_secure::Identity;
use paragpu_communicator_secure::issue::{Authority, Issued};

use crate::arguments::Certificate;
use crate::error::{Error, print};

/// `paragpu certificate`.
pub fn make(order: &Certificate) -> Result<(), Error> {
    let until = SystemTime::now() + Duration::from_secs(order.valid);
    let authority = match order.renew {
        // A new authority would have nothing to renew.
        true => Authority::load(&absolute(&order.directory)?)?.renewing(),
        false => Authority::open(&order.directory)?,
    };
    let Some(vm) = &order.vm else {
        let issued = authority.host(&order.names, until)?;
        let files = files(&issued);
        return print(format!("[tcp]\n{files}\n[migration]\n{files}"));
    };
    let expires = until
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let issued = authority.guest(&Identity {
        vm: vm.clone(),
        memory: order.memory.map_or(0, |memory| memory.0),
        sessions: order.sessions.unwrap_or(0),
        lease: 0,
        expires: expires.as_secs(),
    })?;
    print(format!("[tcp]\n{}", files(&issued)))
}

/// The path as the printed lines name it.
fn absolute(directory: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(directory).map_err(|source| Error::Read {
        path: directory.to_owned(),
        source,
    })
}

/// As the section of a configuration names them.
fn files(issued: &Issued) -> String {
    let line = |key: &str, path: &Path| format!("{key} = {:?}\n", path);
    line("ca", &issued.ca) + &line("certificate", &issued.certificate) + &line("key", &issued.key)
}
