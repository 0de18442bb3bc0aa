//! Finds circles on a way upwards: names seen at different times, or forged ones, may form one.

/// The numbers that were passed, of which it remembers one (R. P. Brent, An improved Monte Carlo factorization algorithm,
/// BIT 20, 1980).
#[derive(Debug)]
pub(crate) struct Passed {
    remembered: u64,
    count: usize,
    next: usize,
}

impl Passed {
    /// Begins at a number.
    pub(crate) const fn new(first: u64) -> Self {
        Self { remembered: first, count: 0, next: 1 }
    }

    /// Passes one more; returns whether it has been passed before, at the latest after thrice the numbers on the way.
    pub(crate) const fn is_again(&mut self, number: u64) -> bool {
        if number == self.remembered {
            return true;
        }
        self.count += 1;
        if self.count == self.next {
            (self.remembered, self.count) = (number, 0);
            self.next = self.next.saturating_mul(2);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_circle_is_found_soon_and_nothing_else() {
        let mut passed = Passed::new(0);
        assert!((1..100_000).all(|number| !passed.is_again(number)));
        for before in [0, 1, 7, 100] {
            for length in [1, 2, 3, 64, 65, 1000] {
                let way = (1..).map(|at: u64| if at < before { at } else { before + at % length });
                let mut passed = Passed::new(way.clone().next().unwrap());
                let steps = way.skip(1).take_while(|number| !passed.is_again(*number)).count();
                let all = usize::try_from(before + length).unwrap();
                assert!(steps <= 3 * all, "{before} {length}: {steps}");
            }
        }
    }
}
