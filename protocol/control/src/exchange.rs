//! Memory that sessions of one VM share: one worker offers a mapping, another worker of the
//! same VM takes it.
//!
//! The daemon keeps a descriptor and the VM of each offer. It generates the token randomly, so no
//! guest can guess another VM's, and looks a token up only among the offers of the requesting
//! worker's VM.

use serde::{Deserialize, Serialize};

/// The name of an offer.
pub type Token = [u8; 16];

/// Maximum number of offers of a VM, and of mappings of other devices' memory of a session.
pub const MAX_OFFERS: usize = 4096;

/// A worker's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Ask {
    /// Offer the memory behind the attached descriptor to other workers.
    Offer {
        /// Its size in bytes.
        size: u64,
        /// Identifies the device that has the memory.
        domain: [u8; 16],
    },
    /// The same, for memory that another worker already offered under this token: the
    /// session moves together with those that imported it.
    Again(Offer),
    /// Withdraw the offer. The empty answer confirms that no worker can import it any more.
    Withdraw(Token),
    /// Look at the memory with this token, or import it.
    Take(Token),
    /// The same, for a device that allocated the memory: it is charged to the VM for this
    /// session, too, but once to the device, which has it until this one returns it.
    Join(Token),
    /// The same, for a device that did not allocate the memory: it is charged to the session
    /// that offers it, and not to this one, until this one returns it.
    Borrow(Token),
    /// Record that the session no longer maps any memory that it joined or borrowed with this
    /// token.
    Return(Token),
    /// Let the VM's part of the session's GPU be this many bytes ([`crate::account`]), if other
    /// VMs do not use them.
    Enlarge(u64),
}

/// An offer of memory to other workers of the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Its token.
    pub token: Token,
    /// Its size in bytes.
    pub size: u64,
    /// Identifies the device that has the memory.
    pub domain: [u8; 16],
}
