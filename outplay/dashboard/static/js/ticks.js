// Positions of the labels of logarithmic axes.

/** 1, 2 and 5 times powers of ten between two positive numbers; evenly spaced ones if those are too few. */
export function logTicks(low, high) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  for (const factors of last - first > 3 ? [[1]] : [[1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
    const found = powers(first, last).flatMap((power) => factors.map((factor) => factor * power)).filter((each) => each >= low && each <= high);
    const every = Math.ceil(found.length / 7);
    if (found.length >= 3) return found.filter((_, index) => index % every === 0);
  }
  return evenly(low, high);
}

/** Zero and powers of ten on both sides, from the size at which the axis is no longer linear. */
export function symlogTicks(low, high, threshold) {
  const first = Math.ceil(Math.log10(threshold));
  const last = Math.floor(Math.log10(Math.max(-low, high, threshold * 10)));
  const sizes = powers(first, last);
  return [...sizes.map((each) => -each).reverse(), 0, ...sizes].filter((each) => each >= low && each <= high);
}

const powers = (first, last) => Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => Number(`1e${first + index}`));

function evenly(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 4));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => (high - low) / each <= 5);
  const found = [];
  for (let index = Math.ceil(low / step); index * step <= high; index += 1) found.push(Number((index * step).toPrecision(12)));
  return found;
}
