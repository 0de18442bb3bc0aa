//! Where a mount may be killed: tests stop at each of these steps and look at what is left.

/// A step of a change of places or names is done, and the next one is not.
#[cfg(not(test))]
pub(super) const fn point(_step: &'static str) {}

#[cfg(test)]
pub(super) use armed::point;

#[cfg(test)]
pub(super) mod armed {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// What a step unwinds with.
    pub(in super::super) struct Killed(pub(in super::super) &'static str);

    /// Steps of this thread pass until `count` have: the next one is the last.
    pub(in super::super) fn arm(count: Option<u32>) {
        LEFT.set(count);
    }

    pub(in super::super) fn point(step: &'static str) {
        match LEFT.get() {
            Some(0) => {
                LEFT.set(None);
                std::panic::resume_unwind(Box::new(Killed(step)));
            }
            Some(left) => LEFT.set(Some(left - 1)),
            None => {}
        }
    }
}
