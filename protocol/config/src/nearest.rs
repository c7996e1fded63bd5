//! Suggestions for misspelled words.

/// The candidate most similar to `word`, if any is similar enough.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .map(|candidate| (similarity(word, candidate), candidate))
        .filter(|(score, _)| *score > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// From 0 to 1 for equal words. A key without its section, or in another section, is
/// similar to the full key.
fn similarity(word: &str, candidate: &str) -> f64 {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let whole = strsim::normalized_damerau_levenshtein(word, candidate);
    let tail = strsim::normalized_damerau_levenshtein(&last(word), &last(candidate));
    whole.max(tail * 0.9)
}
