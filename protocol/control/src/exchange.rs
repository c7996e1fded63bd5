//! Memory that sessions of one VM share: one worker offers a mapping, another worker of the
//! same VM takes it.
//!
//! The daemon keeps a descriptor and the VM of each offer. It generates the token randomly, so no
//! guest can guess another VM's, and looks a token up only among the offers of the requesting
//! worker's VM.

use serde::{Deserialize, Serialize};

/// Names an offer.
pub type Token = [u8; 16];

/// A worker's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Ask {
    /// Others may take the memory that the one descriptor stands for.
    Offer {
        /// Its bytes.
        size: u64,
        /// Names the device that it is of.
        domain: [u8; 16],
    },
    /// The same, of memory that another worker offered under this name: the session moves
    /// together with those that took it.
    Again(Offer),
    /// Nobody can take it any more. There is no answer.
    Withdraw(Token),
    /// The memory with this token.
    Take(Token),
}

/// A worker's offer to the others of its VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Its name.
    pub token: Token,
    /// Its bytes.
    pub size: u64,
    /// Names the device that it is of.
    pub domain: [u8; 16],
}
