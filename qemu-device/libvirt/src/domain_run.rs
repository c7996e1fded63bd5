//! Tells whether a domain is still running since its last start.

use crate::Error;
use crate::ffi::{Connection, Scope};
use crate::xml::Description;

/// A domain since its last start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainRun {
    /// Its name.
    pub name: String,
    uuid: String,
    number: Option<u32>,
    /// The context identifier of its vsock.
    pub cid: Option<u32>,
}

impl DomainRun {
    /// The life of a running domain.
    ///
    /// # Errors
    /// [`Error::NotRunning`]; libvirt's errors.
    pub fn of(connection: &Connection, domain: &str) -> Result<Self, Error> {
        let domain = connection.domain(domain)?;
        if !domain.is_active()? {
            return Err(Error::NotRunning(domain.name()));
        }
        let machine = Description::parse(&domain.xml(Scope::Live)?)?;
        Ok(Self {
            name: domain.name(),
            uuid: machine.uuid,
            number: machine.number,
            cid: machine.cid,
        })
    }

    /// Whether the domain is still running.
    ///
    /// # Errors
    /// libvirt's errors; it may be restarting.
    pub fn lasts(&self, connection: &Connection) -> Result<bool, Error> {
        match Self::of(connection, &self.uuid) {
            // A domain that was started again has another number.
            Ok(now) => Ok(now.number == self.number),
            Err(Error::NotRunning(_) | Error::NoDomain { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
