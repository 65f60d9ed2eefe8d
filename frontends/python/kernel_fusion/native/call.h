// SPDX-License-Identifier: Apache-2.0
// A call of kf's C functions as _described.py puts it in text: three lines (the call for Python,
// the function, the name in messages), then words and numbers. Computes sizes and shapes from it,
// for C++ code of any framework.
#ifndef KF_NATIVE_CALL_H
#define KF_NATIVE_CALL_H

#include "kf/runtime/layout.h"
#include "packed.h"

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

// A function of a library (packed.h), as _resolver.py fills it in; the last members are NULL on the
// CPU.
struct Function {
    int32_t id;
    int (*run)(int, KFP_PARAMETERS);
    size_t (*space)(int, const int64_t *);
    const char *(*error)(int);
    const char *(*detail)(void);
    int (*run_on)(int, int, KFP_PARAMETERS, void *);
    const char *(*reason)(void);
    int (*allocate)(int, size_t, void *, void **);
    int (*free)(int, void *, void *);
    int (*upload)(int, void *, const void *, size_t, void *);
};
// Finds a function on the CPU (0) or a GPU (1) for the first line of a call's text. Returns NULL,
// or why it cannot.
using Resolver = const char *(*)(const char *call, const char *name, int backend, Function *found);

using Shape = std::vector<int64_t>;

// A tensor argument of the C function.
struct Argument {
    std::string name, dtype;
    int at = -1; // index among the tensors of the call; -1: absent
    bool is_read = false;
    kfi_layout_tensor layout = {};
};

inline std::string text_of(const Shape &shape)
{
    std::string found = "(";
    for (size_t d = 0; d < shape.size(); ++d) found += (d ? ", " : "") + std::to_string(shape[d]);
    return found + (shape.size() == 1 ? ",)" : ")");
}

// Reads lines, then words and numbers between blanks.
class Reader
{
  public:
    explicit Reader(const std::string &text) : in_(text) {}
    std::string line()
    {
        std::string found;
        std::getline(in_, found);
        return found;
    }
    std::string word()
    {
        std::string found;
        in_ >> found;
        return found;
    }
    int64_t whole() { return std::strtoll(word().c_str(), nullptr, 10); }
    int small() { return (int)whole(); }
    double number() { return std::strtod(word().c_str(), nullptr); } // hexadecimal
    template <typename T> std::vector<T> wholes()
    {
        std::vector<T> found((size_t)whole());
        for (T &n : found) n = (T)whole();
        return found;
    }

  private:
    std::istringstream in_;
};

// Arguments that determine sizes beside the tensors.
struct Options {
    int64_t axis = 0, groups = 1;
    std::vector<int64_t> integers;
};

class Call
{
  public:
    std::string described, name, where;
    std::vector<Argument> inputs, outputs;
    std::vector<double> scalars;
    Options options;
    int rng = -1;   // index among the tensors of the call
    int fields = 0; // number of fields of the strides struct
    bool has_workspace = false;

    explicit Call(const std::string &text)
    {
        Reader in(text);
        described = in.line(), name = in.line(), where = in.line();
        rng = in.small(), has_workspace = in.whole(), options.axis = in.whole();
        options.groups = in.whole();
        template_ = in.small();
        shaping_ = in.wholes<int>();
        options.integers = in.wholes<int64_t>();
        scalars.resize((size_t)in.whole());
        for (double &x : scalars) x = in.number();
        read_rules(&in);
        fields = in.small();
        for (std::vector<Argument> *list : {&inputs, &outputs}) {
            list->resize((size_t)in.whole());
            for (Argument &t : *list) read(&in, &t);
        }
    }

    // Computes the sizes of a call and checks the shapes of its tensors, NULL for absent ones.
    // Returns an error text, or an empty one.
    std::string lay_out(const std::vector<const Shape *> &shapes, const Options &given,
                        kfi_layout *l) const
    {
        const kfi_layout_rules rules = own_rules();
        const kfi_layout_tensor *tensors[KFI_LAYOUT_SIZES];
        const int64_t *dims[KFI_LAYOUT_SIZES];
        int ranks[KFI_LAYOUT_SIZES], count = 0;
        for (const int i : shaping_) {
            if (!shapes[i] && inputs[i].at >= 0)
                return where + ": " + inputs[i].name + " is missing";
            tensors[count] = &inputs[i].layout;
            dims[count] = shapes[i] ? shapes[i]->data() : nullptr;
            ranks[count++] = shapes[i] ? (int)shapes[i]->size() : -1;
        }
        kfi_layout_integers(&rules, l, given.integers.data(), (int)given.integers.size());
        kfi_layout_error e;
        if (!kfi_layout_find(&rules, count, tensors, dims, ranks, given.axis, &given.groups, l,
                             &e)) {
            const int wrong = shaping_[e.tensor];
            return mismatch(wrong, *shapes[wrong], reason(e));
        }
        const int divisor = kfi_layout_divisor(&rules, l);
        if (divisor >= 0) {
            const int other = rules.divides[divisor];
            return where + ": " + sizes_[divisor] + " is " + std::to_string(l->n[divisor]) +
                   ", expected a divisor of the " + std::to_string(l->n[other]) + " " +
                   sizes_[other];
        }
        const int zero = kfi_layout_zero(&rules, l);
        if (zero >= 0) return refused_zero(zero, rules.beside[zero], *l);
        for (size_t i = 0; i < inputs.size(); ++i) {
            if (!shapes[i]) continue;
            Shape wanted;
            if (!shape(rules, *l, inputs[i], &wanted) || wanted != *shapes[i])
                return mismatch((int)i, *shapes[i],
                                text_of(wanted) + " beside " + inputs[template_].name +
                                    " of the shape " + text_of(*shapes[template_]));
        }
        return "";
    }

    // Computes the shapes of the op's results. Returns an error text, or an empty one.
    std::string results(const kfi_layout &l, std::vector<Shape> *found) const
    {
        const kfi_layout_rules rules = own_rules();
        found->clear();
        for (const Argument &t : outputs) {
            if (t.at < 0) continue;
            if ((int)found->size() <= t.at) found->resize((size_t)t.at + 1);
            if (!shape(rules, l, t, &(*found)[t.at]))
                return where + ": " + t.name + " would have a negative dimension";
        }
        return "";
    }

    // Writes the fields of a tensor that is not contiguous, and sets *some if one is not 0. Returns
    // false if no fields describe its strides.
    bool strides(const kfi_layout &l, const Argument &t, const Shape &shape, const Shape &strides,
                 bool is_out, int64_t *to, int *some) const
    {
        const kfi_layout_rules rules = own_rules();
        return kfi_layout_strides(&rules, &l, &t.layout, shape.data(), strides.data(), is_out, to,
                                  some);
    }

    // Describes a status of the function.
    std::string refused(const Function &f, int code) const
    {
        // The detail begins with the C function's name.
        const char *const detail = f.detail(), *const colon = strstr(detail, ": ");
        return where + ": " + f.error(code) + ": " + (colon ? colon + 2 : detail);
    }

  private:
    kfi_layout_rules rules_ = {};
    std::vector<int32_t> code_, defaults_, beside_;
    std::vector<std::string> sizes_; // names
    std::vector<int> shaping_;       // inputs whose shapes determine the sizes
    int template_ = 0;               // the input to which errors compare the others

    void read_rules(Reader *in)
    {
        rules_.sizes = in->small();
        for (int s = 0; s < rules_.sizes; ++s) sizes_.push_back(in->word());
        for (int s = 0; s < rules_.sizes; ++s) rules_.count[s] = in->small();
        for (int s = 0; s < rules_.sizes; ++s) rules_.divides[s] = in->small();
        rules_.least = in->small(), rules_.has_axis = in->small();
        rules_.joined = in->small();
        code_ = in->wholes<int32_t>(), defaults_ = in->wholes<int32_t>();
        beside_ = in->wholes<int32_t>();
    }
    static void read(Reader *in, Argument *t)
    {
        t->name = in->word(), t->at = in->small(), t->is_read = in->whole();
        t->dtype = in->word();
        t->layout.levels = in->small(), t->layout.field = in->small();
        t->layout.extents = in->small();
        for (int k = 0; k < t->layout.extents; ++k) {
            kfi_layout_extent &x = t->layout.extent[k];
            x.size = in->small(), x.factor = in->small();
            x.addend = in->small(), x.code = in->small();
        }
    }

    kfi_layout_rules own_rules() const
    {
        kfi_layout_rules found = rules_;
        found.code = code_.data(), found.defaults = defaults_.empty() ? nullptr : defaults_.data();
        found.beside = beside_.empty() ? nullptr : beside_.data();
        return found;
    }
    static bool shape(const kfi_layout_rules &rules, const kfi_layout &l, const Argument &t,
                      Shape *found)
    {
        int64_t dims[KFI_LAYOUT_DIMS];
        const int count = kfi_layout_shape(&rules, &l, &t.layout, dims);
        if (count >= 0) found->assign(dims, dims + count);
        return count >= 0;
    }

    // Describes a size of 0 that the shape struct would read as another size.
    std::string refused_zero(int size, int other, const kfi_layout &l) const
    {
        std::string named = inputs[template_].name;
        for (size_t i = inputs.size(); i-- > 0;)
            for (int k = 0; k < inputs[i].layout.extents; ++k)
                if (inputs[i].layout.extent[k].size == size) named = inputs[i].name;
        return where + ": " + named + " has no elements: " + sizes_[size] +
               " is 0, expected 1 or more beside " + std::to_string(l.n[other]) + " " +
               sizes_[other];
    }
    std::string mismatch(int i, const Shape &got, const std::string &expected) const
    {
        return where + ": " + inputs[i].name + " has the shape " + text_of(got) + ", expected " +
               expected;
    }
    static std::string reason(const kfi_layout_error &e)
    {
        const std::string wanted = std::to_string(e.wanted), dim = std::to_string(e.dim);
        switch (e.why) {
        case KFI_LAYOUT_RANK: return (e.more ? "at least " : "") + wanted + " dimensions";
        case KFI_LAYOUT_AXIS: return "a dimension of that axis";
        case KFI_LAYOUT_MULTIPLE: return "a dimension " + dim + " that is a multiple of " + wanted;
        case KFI_LAYOUT_SMALL: return "a dimension " + dim + " of at least " + wanted;
        default: return "fewer dimensions";
        }
    }
};

#endif
