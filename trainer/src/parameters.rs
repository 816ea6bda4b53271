//! Where parameters lie: in buckets, each some whole pages of memory that the ranks of a host can map.
//!
//! Invariant: parameters lie in the order in which backward finishes their gradients, so buckets become complete one after
//! the other, on all ranks in the same order. A parameter lies in one bucket, with all of its elements side by side, and its
//! gradient lies at the same place of the gradients. Buckets end on [`ALIGNMENT`] elements, so that ranks can share one
//! evenly; the elements between are zero and stay so. Absent: what moves buckets.

use std::ops::Range;

use consort::SharedBuffer;

use crate::error::Result;
use crate::number::Number;
use crate::random::Random;

/// Bytes of a page: no two buckets share one.
const PAGE: usize = 4096;

/// Buckets have a multiple of this many elements.
pub const ALIGNMENT: usize = 64;

/// How a parameter begins.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Begin {
    /// With numbers of the normal distribution, mean 0 and this deviation.
    Normal(f64),
    /// With ones.
    Ones,
}

/// A parameter of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    /// Its name in the whole model, whichever ranks have it: `layers.3.mlp.down`.
    pub name: String,
    /// Its rows and columns; vectors have one row.
    pub shape: [usize; 2],
    /// How it begins.
    pub begin: Begin,
}

impl Parameter {
    /// The number of its elements.
    pub fn elements(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// Whether weight decay pulls it towards zero: matrices, not the scales of norms.
    pub fn decays(&self) -> bool {
        self.shape[0] > 1
    }
}

/// The number of a parameter in its layout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ParameterId(usize);

/// Where a parameter lies.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    bucket: usize,
    range: Range<usize>,
}

/// Which parameters a model has, and where each lies.
#[derive(Clone, PartialEq, Debug)]
pub struct Layout {
    parameters: Vec<Parameter>,
    places: Vec<Place>,
    /// Elements of each bucket.
    buckets: Vec<usize>,
}

impl Layout {
    /// Lays parameters out that are given in the order in which backward finishes their gradients. A bucket is closed when
    /// it has `bucket_elements` or more.
    pub fn new(parameters: Vec<Parameter>, bucket_elements: usize) -> Self {
        let (mut places, mut buckets) = (Vec::new(), Vec::<usize>::new());
        let mut open = false;
        for parameter in &parameters {
            if !open {
                buckets.push(0);
            }
            let bucket = buckets.len() - 1;
            let begin = buckets[bucket];
            buckets[bucket] += parameter.elements();
            places.push(Place { bucket, range: begin..buckets[bucket] });
            open = buckets[bucket] < bucket_elements;
        }
        for elements in &mut buckets {
            *elements = elements.next_multiple_of(ALIGNMENT);
        }
        Layout { parameters, places, buckets }
    }

    /// The parameters with their numbers, in the order in which backward finishes their gradients.
    pub fn parameters(&self) -> impl Iterator<Item = (ParameterId, &Parameter)> {
        self.parameters.iter().enumerate().map(|(number, parameter)| (ParameterId(number), parameter))
    }

    /// The elements of all parameters.
    pub fn elements(&self) -> usize {
        self.parameters.iter().map(Parameter::elements).sum()
    }

    /// The number of buckets.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// The bucket of a parameter.
    pub fn bucket(&self, id: ParameterId) -> usize {
        self.places[id.0].bucket
    }

    /// The elements of a parameter within its bucket.
    pub fn range(&self, id: ParameterId) -> Range<usize> {
        self.places[id.0].range.clone()
    }

    /// How many parameters each bucket has.
    pub fn members(&self) -> Vec<usize> {
        let mut members = vec![0; self.buckets.len()];
        self.places.iter().for_each(|place| members[place.bucket] += 1);
        members
    }
}

/// One number for each element of a layout: the parameters themselves, their gradients, or a moment.
pub struct Values<T: Number> {
    /// One piece for all buckets: each piece has descriptors, and a large model has more buckets than a process may have of those.
    memory: SharedBuffer<T>,
    /// Where the buckets lie, one behind the other.
    buckets: Vec<Range<usize>>,
}

impl<T: Number> Values<T> {
    /// Zeros.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::error::Error::Memory) where there are no pages.
    pub fn zeros(layout: &Layout) -> Result<Self> {
        let mut end = 0usize;
        let range = |elements: &usize| {
            let start = end.next_multiple_of(PAGE / size_of::<T>());
            end = start + elements;
            start..end
        };
        let buckets = layout.buckets.iter().map(range).collect();
        Ok(Values { memory: consort::alloc(end)?, buckets })
    }

    /// What training begins with: a function of the seed and each parameter's name.
    ///
    /// # Errors
    /// As [`Values::zeros`].
    pub fn begin(layout: &Layout, seed: u64) -> Result<Self> {
        let mut values = Self::zeros(layout)?;
        for (id, parameter) in layout.parameters() {
            let random = Random::new(seed, &parameter.name);
            let place = values.of_mut(layout, id);
            match parameter.begin {
                Begin::Ones => place.fill(T::ONE),
                Begin::Normal(deviation) => {
                    for (index, value) in (0..).zip(place) {
                        *value = T::of(deviation * random.normal(index));
                    }
                }
            }
        }
        Ok(values)
    }

    /// A parameter's elements.
    pub fn of(&self, layout: &Layout, id: ParameterId) -> &[T] {
        &self.memory[self.place(layout, id)]
    }

    /// A parameter's elements, to be changed.
    pub fn of_mut(&mut self, layout: &Layout, id: ParameterId) -> &mut [T] {
        let place = self.place(layout, id);
        &mut self.memory[place]
    }

    fn place(&self, layout: &Layout, id: ParameterId) -> Range<usize> {
        let Place { bucket, range } = &layout.places[id.0];
        let start = self.buckets[*bucket].start;
        start + range.start..start + range.end
    }

    /// The buckets.
    pub fn buckets(&self) -> impl Iterator<Item = &[T]> {
        self.buckets.iter().map(|bucket| &self.memory[bucket.clone()])
    }

    /// The buckets, to be changed or lent.
    pub fn buckets_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        let (mut rest, mut at) = (&mut self.memory[..], 0);
        self.buckets.iter().map(move |bucket| {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(bucket.start - at);
            let (elements, behind) = from.split_at_mut(bucket.len());
            (rest, at) = (behind, bucket.end);
            elements
        })
    }
}

/// Where backward leaves gradients.
pub trait Gradients<T: Number> {
    /// The place to which a parameter's gradient is added.
    ///
    /// # Panics
    /// If the parameter's gradient was said to be finished.
    fn place(&mut self, id: ParameterId) -> &mut [T];

    /// Nothing more will be added to the parameter's gradient.
    ///
    /// # Errors
    /// What starting the exchange of a bucket ends with.
    fn finished(&mut self, id: ParameterId) -> Result<()>;
}

/// Gradients that stay on this rank.
pub struct Local<'a, T: Number> {
    layout: &'a Layout,
    values: &'a mut Values<T>,
}

impl<'a, T: Number> Local<'a, T> {
    /// Gradients in `values`, to which backward adds.
    pub fn new(layout: &'a Layout, values: &'a mut Values<T>) -> Self {
        Local { layout, values }
    }
}

impl<T: Number> Gradients<T> for Local<'_, T> {
    fn place(&mut self, id: ParameterId) -> &mut [T] {
        self.values.of_mut(self.layout, id)
    }

    fn finished(&mut self, _: ParameterId) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bucket_elements: usize) -> Layout {
        let parameter = |(name, rows, columns): (&str, usize, usize)| Parameter {
            name: name.into(),
            shape: [rows, columns],
            begin: if rows > 1 { Begin::Normal(0.5) } else { Begin::Ones },
        };
        Layout::new([("a", 10, 10), ("b", 1, 10), ("c", 4, 4)].map(parameter).into(), bucket_elements)
    }

    #[test]
    fn buckets_are_closed_when_they_are_full_and_padded() {
        let one = layout(1000);
        assert_eq!((one.buckets.clone(), one.members(), one.elements()), (vec![128], vec![3], 126));
        let two = layout(105);
        assert_eq!((two.buckets.clone(), two.members()), (vec![128, 64], vec![2, 1]));
        assert_eq!(layout(1).members(), [1, 1, 1]);
        let places: Vec<_> = two.parameters().map(|(id, _)| (two.bucket(id), two.range(id))).collect();
        assert_eq!(places, [(0, 0..100), (0, 100..110), (1, 0..16)]);
    }

    #[test]
    fn buckets_share_no_page() {
        let layout = layout(105);
        let mut values = Values::<f64>::zeros(&layout).unwrap();
        let starts: Vec<usize> = values.buckets().map(|bucket| bucket.as_ptr() as usize).collect();
        assert!(starts.iter().all(|start| start.is_multiple_of(PAGE)), "{starts:?}");
        values.buckets_mut().zip(1..).for_each(|(bucket, number)| bucket.fill(f64::from(number)));
        for (id, parameter) in layout.parameters() {
            let number = layout.bucket(id) as f64 + 1.0;
            assert!(values.of(&layout, id).iter().all(|value| *value == number), "{}", parameter.name);
        }
    }

    #[test]
    fn beginnings_do_not_depend_on_the_buckets() {
        let (one, two) = (layout(1000), layout(1));
        let (first, second) =
            (Values::<f32>::begin(&one, 5).unwrap(), Values::<f32>::begin(&two, 5).unwrap());
        for (id, parameter) in one.parameters() {
            assert_eq!(first.of(&one, id), second.of(&two, id), "{}", parameter.name);
        }
        let id = one.parameters().nth(1).unwrap().0;
        assert!(first.of(&one, id).iter().all(|value| *value == 1.0));
        assert!(first.buckets().all(|bucket| bucket[126..].iter().all(|value| *value == 0.0)));
    }
}
