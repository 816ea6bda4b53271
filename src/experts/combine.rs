//! What experts return, added up on its way back; and the gradients, which go the same ways.

use consort_kernels::rows::{Real, Term, dot, scale, weighted_sum};

use super::dispatch::Dispatched;
use super::leg::{Leg, Way};
use super::{Experts, Traffic};
use consort_types::error::Result;

impl<T: Real> Experts<T> {
    /// Each token becomes the sum of what its experts returned, each times its weight of the dispatch: `outputs` has a row for each
    /// row that [`Experts::dispatch`] grouped, `sums` one for each token of this rank. A token that no expert got becomes zeros.
    ///
    /// Products and sums are in `f32` (`f64` of `f64`): of a rank's experts in the order of the token's choices, of the ranks of a host
    /// in their order, of hosts in the order of their first ranks. The sum of a rank and that of a host are rounded to `T`. The same
    /// calls on the same hosts give the same bits, whatever the route.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for lengths that do not fit or the handle of other experts: the other
    /// ranks get [`Error::Aborted`](crate::Error::Aborted) with the rank and what is wrong there, as no counts are exchanged with which
    /// they could hear of it and go on. [`Error::Mismatch`](crate::Error::Mismatch) or [`Error::Aborted`](crate::Error::Aborted) where ranks pass handles of different
    /// dispatches; otherwise as every collective.
    pub fn combine(&mut self, handle: &Dispatched<T>, outputs: &[T], sums: &mut [T]) -> Result<Traffic> {
        self.add_up("combine", handle, outputs, true, sums)
    }

    /// The gradient of a dispatch: `gradients` has a row for each grouped row, and each token gets the sum of its own, unweighted,
    /// added as [`Experts::combine`] adds.
    ///
    /// # Errors
    /// As [`Experts::combine`].
    pub fn dispatch_gradient(
        &mut self,
        handle: &Dispatched<T>,
        gradients: &[T],
        sums: &mut [T],
    ) -> Result<Traffic> {
        self.add_up("dispatch_gradient", handle, gradients, false, sums)
    }

    /// The gradients of a combine. `outputs` is what was combined, `gradients` has a row for each token of this rank: the gradient of its
    /// sum. `of_outputs` gets a row for each grouped row, the token's gradient times the weight; `of_weights` a number for each choice of
    /// this rank's tokens, the product of the token's gradient and the expert's output, and 0 for one that was absent.
    ///
    /// # Errors
    /// As [`Experts::combine`].
    pub fn combine_gradient(
        &mut self,
        handle: &Dispatched<T>,
        outputs: &[T],
        gradients: &[T],
        of_outputs: &mut Vec<T>,
        of_weights: &mut [T::Sum],
    ) -> Result<Traffic> {
        let options = self.layout.options;
        let lengths = [
            ("outputs", outputs.len(), handle.rows() * options.hidden),
            ("of_weights", of_weights.len(), handle.tokens * options.top_k),
        ];
        self.check_along("combine_gradient", handle, &lengths)?;
        let traffic = self.dispatch_again(handle, gradients, of_outputs)?;
        let mut products = Vec::with_capacity(handle.rows());
        for (row, weight) in handle.last.grouped.iter().zip(&handle.last.weights) {
            let place = *row as usize * options.hidden..(*row as usize + 1) * options.hidden;
            products.push(dot(&outputs[place.clone()], &of_outputs[place.clone()]));
            scale(&mut of_outputs[place], *weight);
        }
        let (products, of_numbers) = self.return_numbers(handle, products)?;
        of_weights.fill(T::Sum::default());
        for (slot, product) in handle.slots.iter().zip(products) {
            of_weights[*slot as usize] = product;
        }
        Ok(traffic.and(of_numbers))
    }

    /// Sends a number for each choice that came here back to the rank of its token.
    fn return_numbers(
        &self,
        handle: &Dispatched<T>,
        mut numbers: Vec<T::Sum>,
    ) -> Result<(Vec<T::Sum>, Traffic)> {
        let way = Way { comm: &self.comm, layout: &handle.layout, number: handle.number };
        let (own, mut traffic) = (handle.layout.rank as usize, Traffic::default());
        for leg in handle.legs.iter().rev() {
            let (mut back, mut returned) = (Vec::new(), Vec::new());
            let counts = leg.choice_counts();
            Leg::prepare(counts, own, 1, &mut back, &mut returned);
            for ((stays, at), number) in Leg::targets::<T::Sum>(counts, own, 1).zip(&numbers) {
                if stays { returned[at] = *number } else { back[at] = *number }
            }
            traffic = traffic.and(Leg::send_back(way, counts, 1, &mut back, &mut returned)?);
            numbers = vec![T::Sum::default(); leg.choices.len()];
            for (choice, at) in leg.choices.iter().zip(leg.choice_places::<T::Sum>(own)) {
                numbers[*choice as usize] = returned[at];
            }
        }
        Ok((numbers, traffic))
    }

    /// Adds up rows along the legs, from the last to the first.
    fn add_up(
        &mut self,
        call: &str,
        handle: &Dispatched<T>,
        outputs: &[T],
        weighted: bool,
        sums: &mut [T],
    ) -> Result<Traffic> {
        let hidden = self.layout.options.hidden;
        let lengths = [
            ("the rows of experts", outputs.len(), handle.rows() * hidden),
            ("the rows of tokens", sums.len(), handle.tokens * hidden),
        ];
        self.check_along(call, handle, &lengths)?;
        let way = Way { comm: &self.comm, layout: &handle.layout, number: handle.number };
        let (own, mut traffic) = (handle.layout.rank as usize, Traffic::default());
        for (number, leg) in handle.legs.iter().enumerate().rev() {
            let (before, behind) = self.buffers.split_at_mut(number + 1);
            let buffers = &mut before[number];
            let (back, returned) = (&mut buffers.back, &mut buffers.returned);
            Leg::prepare(leg.rows(), own, hidden, back, returned);
            let mut terms = Vec::new();
            for (row, (stays, at)) in Leg::targets::<T>(leg.rows(), own, hidden).enumerate() {
                terms.clear();
                match (handle.legs.get(number + 1), behind.first()) {
                    (Some(next), Some(behind)) => {
                        add_terms(&mut terms, next.back(row), &behind.returned, hidden)
                    }
                    _ => terms.extend(handle.last.choices(row).map(|choice| Term {
                        row: &outputs[handle.last.grouped[choice] as usize * hidden..][..hidden],
                        weight: if weighted { handle.last.weights[choice] } else { T::ONE },
                        group: 0,
                    })),
                }
                let target = if stays { &mut *returned } else { &mut *back };
                weighted_sum(&mut target[at..at + hidden], &terms);
            }
            traffic = traffic.and(Leg::send_back(way, leg.rows(), hidden, back, returned)?);
        }
        let (Some(leg), Some(buffers)) = (handle.legs.first(), self.buffers.first()) else {
            return Ok(traffic);
        };
        let mut terms = Vec::new();
        for (token, sum) in sums.chunks_exact_mut(hidden).enumerate() {
            terms.clear();
            add_terms(&mut terms, leg.back(token), &buffers.returned, hidden);
            weighted_sum(sum, &terms);
        }
        Ok(traffic)
    }
}

/// The rows that came back for one.
fn add_terms<'a, T: Real>(
    terms: &mut Vec<Term<'a, T>>,
    back: &[(usize, u32)],
    returned: &'a [T],
    hidden: usize,
) {
    let term =
        |(at, host): &(usize, u32)| Term { row: &returned[*at..at + hidden], weight: T::ONE, group: *host };
    terms.extend(back.iter().map(term));
}
