//! Errors for messages.

/// An error and its causes, on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text += &format!(": {source}");
        cause = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with causes.
    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Because {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    #[test]
    fn causes_follow_in_order() {
        let error = ["c", "b", "a"].into_iter().fold(None, |source, text| {
            Some(Box::new(Because { text, source }))
        });
        assert_eq!(chain(&error.unwrap()), "a: b: c");
    }
}
