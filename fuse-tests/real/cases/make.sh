setup() {
    mkdir -p lib
    for i in $(seq 1 40); do
        printf '#include "all.h"\nint f%s(int x) { return x + %s; }\n' "$i" "$i" > "lib/f$i.c"
    done
    { for i in $(seq 1 40); do echo "int f$i(int);"; done; } > lib/all.h
    { echo '#include "lib/all.h"'; echo '#include <stdio.h>'; echo 'int main(void) { int s = 0;'
      for i in $(seq 1 40); do echo "s = f$i(s);"; done; echo 'printf("%d\n", s); return 0; }'; } > main.c
    cat > Makefile <<'MAKE'
OBJ := $(patsubst %.c,%.o,$(sort $(wildcard lib/*.c)))
main: main.c liball.a ; $(CC) -o $@ main.c liball.a
liball.a: $(OBJ) ; $(AR) rcD $@ $(OBJ)
%.o: %.c lib/all.h ; $(CC) -O1 -c -o $@ $<
MAKE
}

work() {
    make -s -j2
    test "$(./main)" = 820
    touch lib/f1.c
    make -s -j2
}

check() {
    test "$(./main)" = 820
    make -q
}
