// The program: it finds the accounts of its key, and serves each until SIGTERM or SIGINT.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

func readKey(file string) (ed25519.PrivateKey, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("%s is not in PEM", file)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	private, is := key.(ed25519.PrivateKey)
	if !is {
		return nil, fmt.Errorf("%s is not an Ed25519 key: %v", file, err)
	}
	return private, nil
}

// accountsOf lists the accounts of a key: one in each project that is entitled to the app.
func accountsOf(ctx context.Context, key ed25519.PrivateKey) (found []*Account, err error) {
	public := base64.RawURLEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
	for after := any(nil); ; {
		var page struct {
			Accounts []*Account `json:"accounts"`
			After    any        `json:"next_after"`
		}
		body := object{"assertion": assertion(key, "adapter", "key:"+public, "/runtime/accounts"), "after": after}
		if err = send(ctx, "POST", "/runtime/accounts", nil, body, &page); err != nil {
			return nil, err
		}
		found, after = append(found, page.Accounts...), page.After
		if after == nil {
			return found, nil
		}
	}
}

func (a *Account) serve(ctx context.Context) {
	for ctx.Err() == nil {
		err := a.poll(ctx, func(instance string, fence int) bool { return a.work(ctx, instance, fence, plan) })
		if err != nil && ctx.Err() == nil {
			log.Printf("a poll failed; retrying: %v", err)
			time.Sleep(300 * time.Millisecond)
		}
	}
	body := object{"holder": holder, "held": a.claims()}
	if err := a.call(context.Background(), "POST", "/releases", "", body, &object{}); err != nil {
		log.Printf("cannot release the claims: %v", err)
	}
}

func main() {
	if os.Getenv("MOORING_URL") == "" || os.Getenv("MOORING_KEY_FILE") == "" {
		log.Fatal("MOORING_URL and MOORING_KEY_FILE are needed")
	}
	key, err := readKey(os.Getenv("MOORING_KEY_FILE"))
	if err != nil {
		log.Fatal(err)
	}
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer end()
	serving, all := map[string]bool{}, sync.WaitGroup{}
	for ctx.Err() == nil {
		found, err := accountsOf(ctx, key)
		pause := 10 * time.Second
		if err != nil && ctx.Err() == nil {
			log.Printf("cannot list the accounts; retrying: %v", err)
			pause = 500 * time.Millisecond
		}
		for _, each := range found {
			if serving[each.ID] || (len(each.Apps) > 0 && !among(app, each.Apps...)) {
				continue
			}
			serving[each.ID], each.key, each.held = true, key, map[string]int{}
			all.Add(1)
			go func(account *Account) { defer all.Done(); account.serve(ctx) }(each)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	all.Wait()
}
