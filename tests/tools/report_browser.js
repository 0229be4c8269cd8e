// Measures pages of `planc explain -o` in frames of a window: report_browser.py puts `pages` before this and
// reads #findings. A page is {name, text}; what is wrong with one is a line of its `faults`.
'use strict';

const kWidths = [1280, 400];
const kHalfPixel = 0.5;
const kSmallestLetter = 10.5;  // px
const kDark = '@media screen and (prefers-color-scheme: dark)';

const views = [];
for (const page of pages)
  for (const width of kWidths)
    for (const isDark of [false, true]) {
      const frame = document.createElement('iframe');
      frame.style.cssText = `width:${width}px;height:900px;border:0`;
      if (!page.text.includes(kDark)) throw new Error('no dark scheme');
      frame.srcdoc = isDark ? page.text.replace(kDark, '@media screen') : page.text;
      document.body.append(frame);
      views.push({page, width, isDark, frame});
    }

const area = (a, b) => [Math.min(a.right, b.right) - Math.max(a.left, b.left),
                        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
const meets = (a, b) => Math.min(...area(a, b)) > 1;
const holds = (outer, inner, slack = 1) =>
    inner.left >= outer.left - slack && inner.right <= outer.right + slack &&
    inner.top >= outer.top - slack && inner.bottom <= outer.bottom + slack;

// The box of an element's own letters.
function letters(element) {
  const range = element.ownerDocument.createRange();
  range.selectNodeContents(element);
  return range.getBoundingClientRect();
}

// Labels that lie on each other.
function overlaps(labels) {
  const boxes = labels.filter(([, box]) => box.width > 0)
                    .sort((a, b) => a[1].left - b[1].left);
  const found = [];
  boxes.forEach(([text, box], i) => {
    for (let j = i + 1; j < boxes.length && boxes[j][1].left < box.right; ++j)
      if (meets(box, boxes[j][1])) found.push(`'${text}' and '${boxes[j][0]}' overlap`);
  });
  return found;
}

const kPictures = {
  width(view, root, tell) {
    const wide = root.documentElement.scrollWidth;
    if (wide > view.width) tell(`the page is ${wide} px wide`);
  },

  svg(view, root, tell) {
    for (const svg of root.querySelectorAll('svg')) {
      const box = svg.getBoundingClientRect();
      const texts = [...svg.querySelectorAll('text')];
      for (const text of texts)
        if (!holds(box, text.getBoundingClientRect()))
          tell(`'${text.textContent}' leaves its picture`);
      overlaps(texts.map(t => [t.textContent, t.getBoundingClientRect()])).forEach(tell);
      for (const rect of svg.querySelectorAll('rect'))
        if (!holds(box, rect.getBoundingClientRect())) tell('a rectangle leaves its picture');
    }
  },

  charts(view, root, tell) {
    for (const chart of root.querySelectorAll('.chart')) {
      const labels = [];
      for (const bar of chart.querySelectorAll('.bar'))
        for (const name of ['label', 'end']) {
          const part = bar.querySelector('.' + name);
          if (!part.textContent) continue;
          labels.push([part.textContent, letters(part)]);
          if (meets(letters(part), bar.querySelector('.track, svg').getBoundingClientRect()))
            tell(`'${part.textContent}' lies on its bar`);
        }
      for (const limit of chart.querySelectorAll('.limit-text'))
        labels.push([limit.textContent, letters(limit)]);
      for (const piece of chart.querySelectorAll('.piece')) {
        const box = letters(piece.querySelector('span'));
        if (!meets(piece.getBoundingClientRect(), box)) continue;  // not seen
        labels.push([piece.textContent, box]);
        if (!holds(piece.getBoundingClientRect(), box)) tell(`'${piece.textContent}' is cut off`);
      }
      overlaps(labels).forEach(tell);
      bars(chart, tell);
    }
  },

  // Each rank's cell has its number and, whichever axis is checked, its coordinate on that.
  grid(view, root, tell) {
    const axes = [...root.querySelectorAll('#grid tbody tr')].map(row => {
      const values = [...row.querySelectorAll('data')].map(data => Number(data.value));
      return {name: row.firstChild.textContent, size: values[0], stride: values[1]};
    });
    const buttons = [...root.querySelectorAll('input[name=by]')];
    if (buttons.length != axes.length) tell(`${buttons.length} buttons for ${axes.length} axes`);
    buttons.forEach((button, i) => {
      button.click();
      const fills = new Map();
      for (const cell of root.querySelectorAll('.cell:not(.none)')) {
        const number = cell.querySelector('i');
        const shown = [...cell.querySelectorAll('b')].filter(b => b.offsetWidth > 0);
        if (shown.length != 1) tell(`a cell shows ${shown.length} coordinates`);
        for (const part of [number, ...shown])
          if (!holds(cell.getBoundingClientRect(), letters(part)))
            tell(`'${part.textContent}' leaves its cell`);
        if (!cell.title.startsWith('rank ')) continue;
        const want = Math.floor(Number(number.textContent) / axes[i].stride) % axes[i].size;
        if (shown[0].textContent != String(want))
          tell(`rank ${number.textContent} is said to be at ${axes[i].name} ${shown[0].textContent}`);
        fills.set(want, getComputedStyle(cell).backgroundColor);
      }
      if (axes[i].size <= 8 && new Set(fills.values()).size != fills.size)
        tell(`coordinates on ${axes[i].name} share colours`);
    });
  },

  letters(view, root, tell) {
    for (const element of texts(root)) {
      const style = getComputedStyle(element);
      const size = parseFloat(style.fontSize);
      if (size < kSmallestLetter) tell(`'${element.textContent}' is ${size} px`);
      const isDrawn = element.tagName == 'text';
      const ratio = isDrawn ? contrast(style.fill, filled(element))
                            : contrast(style.color, ground(element));
      if (ratio < 4.5) tell(`'${element.textContent}' has a contrast of ${ratio.toFixed(2)}`);
    }
  },

  tables(view, root, tell) {
    for (const table of root.querySelectorAll('table'))
      for (const row of table.rows)
        if (row.cells.length != table.rows[0].cells.length)
          tell(`a row of ${row.cells.length} cells: ${row.textContent}`);
  },

  // Nothing is wider than what it stands in, but what scrolls.
  boxes(view, root, tell) {
    for (const element of texts(root)) {
      const box = element.closest('.tiles div, .verdict, td, th, li, p, .cell, .label, .end, section');
      if (box && !element.closest('svg, .piece') && !holds(box.getBoundingClientRect(), letters(element)))
        tell(`'${element.textContent}' leaves its box`);
    }
  },

  network(view, root, tell) {
    const fetched = view.frame.contentWindow.performance.getEntriesByType('resource');
    for (const entry of fetched) tell(`it asks for ${entry.name}`);
    if (root.scripts.length) tell('it has scripts');
  },
};

// Widths are sizes at one scale in a chart, and the limit stands where it belongs.
function bars(chart, tell) {
  const all = [...chart.querySelectorAll('.track')].map(track => ({
    track, pieces: [...track.querySelectorAll('.piece')].map(piece => ({
      size: Number(piece.dataset.size), width: piece.getBoundingClientRect().width}))}));
  const sum = (bar, what) => bar.pieces.reduce((total, piece) => total + piece[what], 0);
  const longest = all.reduce((a, b) => sum(a, 'size') > sum(b, 'size') ? a : b);
  if (!sum(longest, 'size')) return;
  const scale = sum(longest, 'width') / sum(longest, 'size');
  for (const bar of all) {
    for (const piece of bar.pieces)
      if (Math.abs(piece.width - piece.size * scale) > kHalfPixel)
        tell(`${piece.size} is ${piece.width} px, not ${piece.size * scale}`);
    if (Math.abs(sum(bar, 'width') - sum(bar, 'size') * scale) > kHalfPixel)
      tell(`a bar of ${sum(bar, 'size')} is ${sum(bar, 'width')} px`);
    const limit = bar.track.querySelector('.limit');
    if (!limit) continue;
    const at = limit.getBoundingClientRect().left - bar.track.getBoundingClientRect().left;
    const want = Number(chart.dataset.limit) * scale;
    if (Math.abs(at - want) > kHalfPixel) tell(`the limit stands at ${at} px, not ${want}`);
  }
}

// Elements with words of their own that are seen.
function* texts(root) {
  for (const element of root.body.querySelectorAll('*')) {
    if (![...element.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue;
    const box = element.getBoundingClientRect();
    if (box.width > 0 && box.height > 0 && element.tagName != 'TITLE') yield element;
  }
}

const channels = colour => colour.match(/[\d.]+/g).map(Number);
function ground(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    const [, , , alpha = 1] = channels(colour);
    if (alpha > 0) return colour;
  }
  return 'rgb(255, 255, 255)';
}
// Of letters in a picture: the rectangle that was drawn for them, or what lies behind the picture.
function filled(text) {
  const before = text.previousElementSibling, fill = getComputedStyle(before).fill;
  const isBehind = before.tagName == 'rect' && fill != 'none' &&
                   holds(before.getBoundingClientRect(), text.getBoundingClientRect());
  return isBehind ? fill : ground(text.closest('svg').parentElement);
}
function luminance(colour) {
  const [r, g, b] = channels(colour).map(c => c / 255).map(
      c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(a, b) {
  const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
}

// What the page says, for report_browser.py to compare.
function figures(root) {
  const values = selector => [...root.querySelectorAll(selector)].map(data => data.value);
  return {
    tables: values('table data'),
    all: values('data'),
    memory: [...root.querySelectorAll('#memory .bar:not(.above)')].map(
        bar => [...bar.querySelectorAll('.piece')].map(piece => Number(piece.dataset.size))),
    counts: {svg: root.querySelectorAll('svg').length, tables: root.querySelectorAll('table').length,
             charts: root.querySelectorAll('.chart').length},
  };
}

const errors = [];
addEventListener('error', event => errors.push(event.message));
addEventListener('load', () => {
  const findings = [];
  const grounds = new Set();
  for (const view of views) {
    const root = view.frame.contentDocument, faults = [];
    for (const details of root.querySelectorAll('details')) details.open = true;
    for (const [what, measure] of Object.entries(kPictures))
      measure(view, root, fault => faults.push(`${what}: ${fault}`));
    grounds.add(getComputedStyle(root.body).backgroundColor);
    findings.push({name: view.page.name, width: view.width, isDark: view.isDark, faults,
                   figures: figures(root)});
  }
  if (grounds.size != 2) errors.push('light and dark look the same');
  for (const view of views) view.frame.remove();
  document.scripts[0].remove();
  document.querySelector('#findings').textContent = JSON.stringify({errors, findings});
});
