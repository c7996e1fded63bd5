//! What a destination lacks for the objects of a round, so that it does not create them. The
//! sessions that move with it may provide it: while the programs run, their rounds need not match.

use std::time::Instant;

use super::sharing::AGAIN;
use super::state::StateError;
use crate::session::memory::DeviceMemory;

/// Answer to a round whose objects were created.
const NOTHING: u8 = 0;
const OFFERS: u8 = 1;
const ROOM: u8 = 2;
const UNMAPPED: u8 = 3;

/// What a destination lacks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// Offers of memory that the session shares.
    Offers,
    /// Memory that the program has unmapped since, which other objects may need.
    Unmapped,
    /// Room for the session's memory. Others may have what their programs have freed since.
    Room {
        /// The limit of the VM, if that leaves none.
        limit: Option<u64>,
        /// One sentence.
        why: String,
    },
}

impl Lack {
    /// Waits until other sessions leave room for `size` more bytes.
    pub(super) fn of_room(memory: &DeviceMemory, size: u64, deadline: Instant) -> Option<Self> {
        loop {
            let (limit, why) = memory.crowded(size)?;
            if Instant::now() >= deadline {
                return Some(Self::Room { limit, why });
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// The error of a stopped session.
    pub(super) fn into_error(self) -> StateError {
        match self {
            Self::Offers => StateError::Order("a stopped session that waits for others"),
            Self::Unmapped => StateError::Order("a stopped session that unmaps memory"),
            Self::Room { why, .. } => StateError::Impossible(why),
        }
    }

    /// The destination's answer to a round.
    pub(super) fn answer(lack: Option<&Self>) -> Vec<u8> {
        match lack {
            None => vec![NOTHING],
            Some(Self::Offers) => vec![OFFERS],
            Some(Self::Unmapped) => vec![UNMAPPED],
            Some(Self::Room { limit, why }) => {
                // Accounts have no limit of 0.
                let limit = limit.unwrap_or(0).to_le_bytes();
                [&[ROOM], limit.as_slice(), why.as_bytes()].concat()
            }
        }
    }

    /// From that answer.
    pub(super) fn of(answer: &[u8]) -> Result<Option<Self>, StateError> {
        match answer {
            [NOTHING] => Ok(None),
            [OFFERS] => Ok(Some(Self::Offers)),
            [UNMAPPED] => Ok(Some(Self::Unmapped)),
            [ROOM, rest @ ..] => {
                let (limit, why) = rest.split_first_chunk().ok_or(StateError::Incomplete)?;
                let limit = u64::from_le_bytes(*limit);
                Ok(Some(Self::Room {
                    limit: Some(limit).filter(|limit| *limit > 0),
                    why: String::from_utf8_lossy(why).into_owned(),
                }))
            }
            _ => Err(StateError::Order("an answer of an unknown kind")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood() {
        let room = |limit| Lack::Room {
            limit,
            why: "there is none".to_owned(),
        };
        for lack in [
            None,
            Some(Lack::Offers),
            Some(Lack::Unmapped),
            Some(room(None)),
            Some(room(Some(7))),
        ] {
            assert_eq!(Lack::of(&Lack::answer(lack.as_ref())).unwrap(), lack);
        }
        for wrong in [&[][..], &[4], &[0, 0], &[2, 1]] {
            assert!(Lack::of(wrong).is_err(), "{wrong:?}");
        }
    }
}
