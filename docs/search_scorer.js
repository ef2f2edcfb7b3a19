/* How the search of the site orders pages. Sphinx puts this file before its own script, and compares
   the whole query with titles and index entries. Here each word of the query counts: once more if
   an index entry of the page has it, and once more if the title has it. */

const INDEX_WORD = 40;
const TITLE_WORD = 20;
const IN_EVERY_PAGE = ["tma", "kernel"]; // They count if the query has no other word.

function wordsOf(text) {
    const words = text.toLowerCase().match(/[\p{Letter}\p{Number}_]+/gu) ?? [];
    return words.map((word) => word.replace(/s$/, ""));
}

/* The points of a page: index is Sphinx's search index. */
function pointsOfWords(query, docname, index) {
    const typed = [...new Set(wordsOf(query))];
    const rare = typed.filter((word) => !IN_EVERY_PAGE.includes(word));
    const words = rare.length > 0 ? rare : typed;
    const page = index.docnames.indexOf(docname);
    const title = new Set(wordsOf(index.titles[page]));
    const entries = Object.entries(index.indexentries)
        .filter(([, targets]) => targets.some(([target, , isMain]) => isMain && target === page))
        .map(([entry]) => new Set(wordsOf(entry)));
    const points = (word) =>
        (entries.some((entry) => entry.has(word)) ? INDEX_WORD : 0) +
        (title.has(word) ? TITLE_WORD : 0);
    return words.map(points).reduce((sum, one) => sum + one, 0);
}

var Scorer = {
    score: ([docname, , , , score]) => {
        const query = new URLSearchParams(window.location.search).get("q") ?? "";
        return score + pointsOfWords(query, docname, Search._index);
    },

    // Sphinx's own numbers.
    objNameMatch: 11,
    objPartialMatch: 6,
    objPrio: { 0: 15, 1: 5, 2: -5 },
    objPrioDefault: 0,
    title: 15,
    partialTitle: 7,
    term: 5,
    partialTerm: 2,
};
