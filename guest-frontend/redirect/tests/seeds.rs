//! The fuzz target's seeds.

mod any;

#[test]
fn seeds_of_redirect() {
    paragpu_corpora::each("redirect", |_, data| any::any_bytes(data));
}
