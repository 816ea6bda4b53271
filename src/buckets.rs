//! Small tensors in buckets: what one started call carries lies side by side.
//!
//! Invariant: pure; places follow from lengths, kinds and limits alone, so ranks that pass the same have the same ones. Absent: memory, and
//! the calls.
//!
//! Source: PyTorch's distributed data parallelism (arXiv 2006.15704), section 3.2, gradient bucketing.

use std::ops::Range;

/// Where tensors lie in buckets: each in one bucket, with all of its elements, in the order in which they are given. A gradient in its
/// place needs no copy before its bucket's sum is started, and a bucket's sum costs one call however many tensors it has.
///
/// ```
/// use consort::{Buckets, Communicator, ReduceOp};
///
/// // In the order in which backward finishes them. The last one is summed among other ranks, so it has a bucket of its own.
/// let tensors = [(100, "dense"), (4, "dense"), (4, "dense"), (30, "experts")];
/// let buckets = Buckets::new(tensors, 100, 16);
/// assert_eq!((0..buckets.len()).map(|bucket| buckets.elements(bucket)).collect::<Vec<_>>(), [112, 16, 32]);
/// assert_eq!((buckets.bucket(2), buckets.range(2), buckets.members(1)), (1, 4..8, 1..3));
///
/// let comm = Communicator::local(1)?.remove(0);
/// let mut works = Vec::new();
/// for bucket in 0..buckets.len() {
///     let mut gradients = vec![0f32; buckets.elements(bucket)];
///     for tensor in buckets.members(bucket) {
///         gradients[buckets.range(tensor)].fill(tensor as f32);
///     }
///     works.push(comm.start_all_reduce(gradients, ReduceOp::Sum)?);
/// }
/// for (bucket, work) in works.into_iter().enumerate() {
///     let gradients = work.wait()?;
///     assert!(buckets.members(bucket).all(|tensor| gradients[buckets.range(tensor)][0] == tensor as f32));
/// }
/// # consort::Result::Ok(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buckets {
    /// By tensor.
    places: Vec<(usize, Range<usize>)>,
    /// By bucket.
    buckets: Vec<Bucket>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Bucket {
    elements: usize,
    members: Range<usize>,
}

impl Buckets {
    /// Lays tensors out, each with how many elements it has and its kind. A bucket is closed when it has `limit` elements or more, and where
    /// the next tensor is of another kind, as those of another type or of other ranks are. Each bucket ends with as many elements of no tensor
    /// as make it a multiple of `alignment`: with a multiple of the ranks, each can have an equal share of it.
    ///
    /// # Panics
    /// If `alignment` is 0, or a bucket has more elements than `usize` counts.
    pub fn new<K: PartialEq>(
        tensors: impl IntoIterator<Item = (usize, K)>,
        limit: usize,
        alignment: usize,
    ) -> Self {
        assert!(alignment > 0, "buckets have a multiple of some elements");
        let (mut places, mut buckets, mut open) = (Vec::new(), Vec::<Bucket>::new(), None);
        for (tensor, (elements, kind)) in tensors.into_iter().enumerate() {
            if open.as_ref() != Some(&kind) {
                buckets.push(Bucket { elements: 0, members: tensor..tensor });
            }
            let number = buckets.len() - 1;
            let bucket = &mut buckets[number];
            let end = bucket.elements.checked_add(elements).expect("a bucket of fewer elements");
            places.push((number, bucket.elements..end));
            (bucket.elements, bucket.members.end) = (end, tensor + 1);
            open = (end < limit).then_some(kind);
        }
        for bucket in &mut buckets {
            bucket.elements =
                bucket.elements.checked_next_multiple_of(alignment).expect("a bucket of fewer elements");
        }
        Buckets { places, buckets }
    }

    /// The number of buckets.
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Whether there is no bucket, as there was no tensor.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// The elements of a bucket, those of no tensor among them.
    ///
    /// # Panics
    /// If there are not as many buckets.
    pub fn elements(&self, bucket: usize) -> usize {
        self.buckets[bucket].elements
    }

    /// The numbers of the tensors of a bucket.
    ///
    /// # Panics
    /// If there are not as many buckets.
    pub fn members(&self, bucket: usize) -> Range<usize> {
        self.buckets[bucket].members.clone()
    }

    /// The bucket of a tensor.
    ///
    /// # Panics
    /// If there are not as many tensors.
    pub fn bucket(&self, tensor: usize) -> usize {
        self.places[tensor].0
    }

    /// The elements of a tensor within its bucket.
    ///
    /// # Panics
    /// If there are not as many tensors.
    pub fn range(&self, tensor: usize) -> Range<usize> {
        self.places[tensor].1.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements and members of each bucket.
    fn shape(buckets: &Buckets) -> Vec<(usize, Range<usize>)> {
        (0..buckets.len()).map(|bucket| (buckets.elements(bucket), buckets.members(bucket))).collect()
    }

    #[test]
    fn buckets_are_closed_when_they_are_full_and_where_another_kind_begins() {
        let alike = |limit| Buckets::new([100, 10, 16].map(|elements| (elements, ())), limit, 64);
        assert_eq!(shape(&alike(1000)), [(128, 0..3)]);
        assert_eq!(shape(&alike(105)), [(128, 0..2), (64, 2..3)]);
        assert_eq!(shape(&alike(0)), [(128, 0..1), (64, 1..2), (64, 2..3)]);
        let kinds = Buckets::new([(5, 'a'), (5, 'a'), (5, 'b'), (5, 'a')], 100, 1);
        assert_eq!(shape(&kinds), [(10, 0..2), (5, 2..3), (5, 3..4)]);
    }

    #[test]
    fn tensors_lie_side_by_side_in_their_order() {
        // A tensor without elements has a place, too.
        let lengths = [7, 0, 9, 1, 30, 2];
        for limit in [1, 8, 17, 1000] {
            let buckets = Buckets::new(lengths.map(|elements| (elements, ())), limit, 4);
            for bucket in 0..buckets.len() {
                let mut end = 0;
                for tensor in buckets.members(bucket) {
                    assert_eq!(buckets.bucket(tensor), bucket, "limit {limit}");
                    assert_eq!(buckets.range(tensor), end..end + lengths[tensor], "limit {limit}");
                    end += lengths[tensor];
                }
                assert_eq!(buckets.elements(bucket), end.next_multiple_of(4), "limit {limit}");
            }
        }
    }

    #[test]
    fn nothing_makes_no_bucket() {
        let none = Buckets::new(Vec::<(usize, ())>::new(), 10, 1);
        assert_eq!((none.is_empty(), none.len()), (true, 0));
    }

    #[test]
    #[should_panic(expected = "a bucket of fewer elements")]
    fn lengths_that_cannot_be_counted_are_refused() {
        Buckets::new([(usize::MAX - 1, ()), (2, ())], usize::MAX, 1);
    }
}
