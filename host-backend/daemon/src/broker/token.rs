//! Session tokens, the secrets that identify sessions.

/// Compares two secrets in constant time.
pub(super) fn same(one: &[u8; 16], other: &[u8; 16]) -> bool {
    one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// A random secret. All zeros, which resumes no session, if the system has no randomness.
pub(super) fn token() -> [u8; 16] {
    let mut token = [0; 16];
    match rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => token,
        _ => [0; 16],
    }
}
